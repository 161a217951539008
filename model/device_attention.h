// Attention of one layer over the tiered cache of a GPU (sparse/device_kv.h): what model/tiered_attention.h does,
// driven by tables on the device. A step runs its generated tokens together and each prompt's chunk by itself.
//
// Generated tokens: everything that differs between rows is read on the device, so that the launches of a DecodeShape
// can be captured and replayed. Prompts: the host knows their lengths.
//
// Prompts of parked sequences (from the host): the chunk's rows go through a buffer to the host; earlier rows come back
// in pieces of kPieceTokens (prompt_pieces.h), in which resident ones are expanded too (latent rows), so both sum in
// the same order. Where prompts select (DSA), all rows of the layer are brought at once. Thread: the stream that runs
// the steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/new_rows.h"
#include "kernels/cuda/sparse_attention.h"
#include "kernels/cuda/sparse_diff.h"
#include "kernels/cuda/swap_totals.h"
#include "kernels/dense_backend.h"
#include "model/attention.h"
#include "model/decode_batch.h"
#include "model/decode_probe.h"
#include "model/device_selection_report.h"
#include "model/prompt_pieces.h"
#include "model/weights.h"
#include "sparse/device_kv.h"
#include "sparse/device_selection_model.h"

namespace hotset::model {

class DeviceAttention final : public KvAttention {
 public:
  struct Limits {
    std::int64_t max_prompt_rows = 0;  // of a chunk
    std::int64_t max_tokens = 0;       // of a sequence
  };
  // `keeper`: the algorithm whose metadata the cache keeps, null: none. Everything passed outlives it.
  DeviceAttention(const AttentionShape& shape, const ModelWeights& weights, kernels::DenseBackend& backend,
                  const kernels::cuda::DeviceStream& stream, const kernels::cuda::DeviceInfo& device,
                  sparse::DeviceKv& kv, const sparse::SelectionAlgorithm* keeper, const Limits& limits);

  // The next run() calls are for the generated tokens of a step, or for one chunk of a prompt. What is passed outlives
  // them.
  void begin_decode(const DecodeBatch& batch, const DecodeShape& shape);
  // `positions`: [rows] on the device; `metadata_positions`: the same, or negative where nothing is kept.
  void begin_prompt(const SequenceSlice& slice, const std::int64_t* positions, const std::int64_t* metadata_positions);

  [[nodiscard]] bool finishes_rows() const override { return true; }
  void run(std::uint64_t step, const LayerAttention& layer, std::span<const SequenceSlice> slices) override;
  // Of the begun prompt: keeps the layer's rows and metadata, as run() does, and attends to nothing.
  void keep_prompt(const LayerAttention& layer);

  // Of decode rows; null: none. It outlives its use.
  void set_probe(DecodeProbe* probe) { probe_ = probe; }
  // For measurements: what takes the place of decode rows' selections; null: nothing. It outlives its use.
  void set_selection_model(const sparse::DeviceSelectionModel* model) { selection_model_ = model; }

  // Told of the selections of prompts; null: nobody. It outlives its use.
  void set_report(DeviceSelectionReport* report) { report_ = report; }

  // Found by the diffs since the last call of begin_decode(); device pointer, [rows of the batch].
  [[nodiscard]] const kernels::cuda::SwapTotals* swap_totals() const { return swap_totals_.data(); }
  void clear_swap_totals() {
    stream_.fill_bytes(swap_totals_.data(), 0, swap_totals_.size() * sizeof(kernels::cuda::SwapTotals));
  }

 private:
  // Where new rows and their metadata go.
  struct Targets {
    kernels::cuda::NewRowTargets rows;
    kernels::cuda::MetadataTarget metadata;  // without pages: none is kept
    std::int64_t count = 0;
  };
  // Finishes them.
  void store(const LayerAttention& layer, const Targets& targets);
  struct RowRange {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  void decode(const LayerAttention& layer);
  void decode_in_groups(const LayerAttention& layer, bool selects);
  [[nodiscard]] kernels::cuda::SparseDiffParams diff(LayerId layer, const RowRange& rows) const;
  void list_slots(LayerId layer, const RowRange& rows);
  void tell_probe(DecodeProbe::Part part, LayerId layer) {
    if (probe_ != nullptr) probe_->after(part, layer);
  }
  // `spared`: multiprocessors that scores leave to page I/O.
  void select(const LayerAttention& layer, const RowRange& rows, std::int32_t spared);
  struct Scoring {  // of rows that select
    const std::int64_t* query_rows = nullptr;
    const std::int64_t* lengths = nullptr;  // tokens; 0: not scored
    const std::int64_t* first = nullptr;
    const std::int64_t* last = nullptr;
    const std::byte* pool = nullptr;
    const std::int32_t* pages = nullptr;
    std::int64_t page_stride = 0;
    std::int64_t first_row = 0;  // its query
    std::int64_t rows = 0;
    std::int64_t max_length = 0;
    std::int32_t spared = 0;  // multiprocessors
  };
  float* score(const LayerAttention& layer, const Scoring& scoring);
  struct Attended {
    RowRange rows;
    std::int64_t max_count = 0;
    const std::byte* pool = nullptr;
    std::int64_t first_list = 0;  // in lists_
    bool whole = false;           // instead of lists: everything that the batch's sequences have
  };
  void attend(const LayerAttention& layer, const Attended& attended);

  void prompt(std::uint64_t step, const LayerAttention& layer);
  void prompt_dense(const LayerAttention& layer, std::int64_t rows);
  void prompt_selected(const LayerAttention& layer, std::int64_t first);
  void select_prompt_rows(const LayerAttention& layer, std::int64_t first, std::int64_t count);
  // The pages of a piece of the prompt's earlier rows: in the pool, or brought to the piece buffer.
  struct Piece {
    const std::byte* pool = nullptr;
    const std::int32_t* pages = nullptr;
  };
  [[nodiscard]] Piece piece(const LayerAttention& layer, std::int64_t first, std::int64_t end);
  void expand(LayerId layer, const Piece& piece, std::int64_t rows);
  [[nodiscard]] bool streamed() const { return slice_->kv->mode == sparse::KvMode::kParked; }
  [[nodiscard]] std::int32_t metadata_layer(LayerId layer) const {
    return kv_.layout().metadata_of_layer[static_cast<std::size_t>(layer.value())];
  }
  [[nodiscard]] bool streams_whole_layers() const { return keeper_ != nullptr && keeper_->selects_prompt(); }

  AttentionShape shape_;
  const ModelWeights& weights_;
  kernels::DenseBackend& backend_;
  const kernels::cuda::DeviceStream& stream_;
  kernels::cuda::DeviceInfo device_;
  kernels::cuda::AttentionForm form_;  // of decode steps
  sparse::DeviceKv& kv_;
  const sparse::SelectionAlgorithm* keeper_;
  Limits limits_;
  std::vector<kernels::Array<float>> basis_;  // [layers] of low-rank index keys

  DecodeProbe* probe_ = nullptr;
  const sparse::DeviceSelectionModel* selection_model_ = nullptr;
  DeviceSelectionReport* report_ = nullptr;
  kernels::cuda::DeviceStream load_stream_;  // of misses, beside other work
  kernels::cuda::DeviceEvent diff_done_;
  std::array<kernels::cuda::DeviceEvent, 3> loaded_;  // [group of rows] of a layer
  const DecodeBatch* batch_ = nullptr;                // decoding
  DecodeShape decode_;
  const SequenceSlice* slice_ = nullptr;  // a prompt
  const std::int64_t* positions_ = nullptr;
  const std::int64_t* metadata_positions_ = nullptr;
  LayerId selected_layer_{0};  // whose selections are in force

  kernels::Array<std::int32_t> slot_of_, list_counts_, arrivals_;
  kernels::Array<kernels::cuda::SparseMiss> misses_;
  kernels::Array<kernels::cuda::SparseDiffCounts> diff_counts_;
  kernels::Array<kernels::cuda::SwapTotals> swap_totals_;
  kernels::cuda::GrowingMemory scores_, score_workspace_, lists_, attention_workspace_, prefill_workspace_, converted_;
  // Prompts.
  kernels::cuda::GrowingMemory prompt_selection_, prompt_counts_, prompt_numbers_;
  kernels::cuda::GrowingMemory latents_, expanded_keys_, expanded_values_;
  kernels::cuda::GrowingMemory chunk_rows_, metadata_rows_;
  PromptPieces pieces_;
  kernels::Array<std::int32_t> own_pages_;              // 0, 0, 1, 2, ...: behind the first entry, page i is page i
  kernels::Array<kernels::cuda::HotRow> streamed_row_;  // of a parked sequence's chunk
};

}  // namespace hotset::model
