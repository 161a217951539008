// The heart: attention of one layer over the tiered cache. New rows are written where their sequence keeps them, with
// what selection needs of them; queries that select choose their blocks; then every row attends:
// - a generated token over a list of physical slots (everything, or its selection, whose missing rows come first),
// - a prompt's row densely over tiles of 64 positions (device pages, or pages brought from the host one by one), or,
//   when the algorithm selects for prompts too, over its selection like a generated token.
// Thread: the stream that runs the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "model/attention.h"
#include "model/attention_verifier.h"
#include "sparse/selection.h"
#include "sparse/selection_observer.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

// The expanded form of latent rows for dense prompts (DeepSeek-V2, section 2.1): K and V of every head.
class TileExpander {
 public:
  virtual ~TileExpander() = default;
  [[nodiscard]] virtual KvGeometry geometry() const = 0;  // kGrouped, float32, one KV head per query head
  // Expands the first `rows` rows of a tile of the cache to `out` [rows][geometry().row_bytes()].
  virtual void expand(LayerId layer, const std::byte* tile, std::int64_t rows, std::byte* out) = 0;
};

class TieredAttention final : public KvAttention {
 public:
  // `max_prefill_rows`: the largest prompt slice. `keeper`: the algorithm whose metadata the cache keeps, null: none;
  // its rows are appended for every sequence that keeps metadata. `expander` for latent models. Everything passed
  // outlives it.
  TieredAttention(const AttentionShape& shape, kernels::Backend& backend, sparse::TieredKv& kv,
                  const sparse::SelectionAlgorithm* keeper, TileExpander* expander, std::int64_t max_prefill_rows);

  // Checks a share of the generated tokens' attention from then on.
  void verify(double rate);
  [[nodiscard]] VerifyOutcome take_verified() { return verifier_ ? verifier_->take() : VerifyOutcome{}; }

  // Told of every selection from then on; null: nobody.
  void observe(sparse::SelectionObserver* observer) { observer_ = observer; }

  void run(std::uint64_t step, const LayerAttention& layer, std::span<const SequenceSlice> slices) override;

 private:
  void store(const LayerAttention& layer, std::span<const SequenceSlice> slices);
  void append_metadata(const LayerAttention& layer, std::span<const SequenceSlice> slices);
  void select(const LayerAttention& layer, std::span<const SequenceSlice> slices);
  void select_with(const sparse::SelectionAlgorithm& algorithm, const LayerAttention& layer,
                   std::span<const SequenceSlice> slices);
  void tell(std::uint64_t step, LayerId layer, std::span<const SequenceSlice> slices);
  void decode(const LayerAttention& layer, std::span<const SequenceSlice> slices);
  void verify_decode(const LayerAttention& layer, std::span<const SequenceSlice> slices);
  void prefill(const LayerAttention& layer, const SequenceSlice& slice);
  void prefill_tiles(const LayerAttention& layer, const SequenceSlice& slice, std::int64_t rows);
  void prefill_selected(const LayerAttention& layer, const SequenceSlice& slice, std::int64_t first);
  void prefill_staged(const LayerAttention& layer, const SequenceSlice& slice, std::int64_t first);
  void attend_slots(const LayerAttention& layer, const std::byte* pool, std::int64_t first_row);
  [[nodiscard]] std::span<const std::int32_t> selection_of(std::int64_t row) const;

  AttentionShape shape_;
  kernels::Backend& backend_;
  sparse::TieredKv& kv_;
  const sparse::SelectionAlgorithm* keeper_;
  TileExpander* expander_;
  sparse::SelectionObserver* observer_ = nullptr;
  std::optional<AttentionVerifier> verifier_;
  // Workspace, sized once.
  KvGeometry tile_geometry_;            // of what dense prompts attend to
  std::vector<float> acc_, max_, sum_;  // carried softmax of a prompt slice
  std::vector<std::byte> staged_tile_, expanded_tile_;
  std::int64_t staged_capacity_ = 0;  // rows
  std::vector<std::byte> staged_rows_;
  // The selections of a step in the layer that made them.
  sparse::SelectionList selections_;
  std::vector<std::int64_t> selection_index_;  // [batch row]: in selections_, -1: attends to everything
  // Scratch, reused.
  sparse::SelectionScratch scratch_;
  std::vector<sparse::SelectionRow> selecting_;
  std::vector<std::byte*> row_targets_, metadata_targets_;
  std::vector<std::int32_t> metadata_offsets_, staged_index_;
  std::vector<const std::byte*> metadata_pages_, tiles_;
  std::vector<std::int64_t> slots_, slot_offsets_, staged_positions_, first_pages_;
};

}  // namespace hotset::model
