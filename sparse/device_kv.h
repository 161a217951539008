// The tiered cache of a GPU: what sparse/tiered_kv.h does, for pools whose device side only the GPU sees and whose host
// side it reads in place. Decides nothing. The invariants of a sequence are those of tiered_kv.h; rows move in stream
// order, so a call returns when its copies are queued.
//
// Kernels find everything in tables on the device, by row of the decode batch. A sequence keeps its row from step to
// step, so that a table changes only where the sequence grew; rows are numbered without holes.
//
// Write-through: commit_rows() queues finished pages on a stream of their own, behind the step that wrote them. A ring
// slot is written again at the earliest R + 1 steps after its page was finished: the page's oldest row is 63 rows older
// than its last, the ring holds C >= R + 64, and a hot sequence gets one row a step. So a step waits for the copies of
// kStepsUnderWay steps before. Operations wait for all of them.
// Thread: the stream that runs the sequences' steps; a DeviceSequence may be destroyed on any thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/page_io.h"
#include "kernels/dense_backend.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"
#include "storage/kv_pools.h"

namespace hotset::sparse {

// Steps that are begun and not finished, at most. Pinned memory of a step is used again so many steps later.
inline constexpr std::uint64_t kStepsUnderWay = 2;

struct DeviceKvLimits {
  std::int32_t max_batch = 0;     // decode rows of a step
  std::int64_t max_tokens = 0;    // rows of a sequence
  std::int64_t max_selected = 0;  // blocks of a selection; 0: nothing selects
  HotBufferShape largest_hot;     // no sequence has more hot blocks or ring rows
};

// Pieces of device memory of one size, given back by whoever drops the last owner, on any thread.
class DevicePieces {
 public:
  DevicePieces(kernels::DenseBackend& backend, std::int64_t bytes, std::int64_t count);
  [[nodiscard]] std::shared_ptr<std::byte> take();

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<std::byte*> free;
    std::unique_ptr<kernels::Memory> memory;
  };
  std::shared_ptr<Shared> shared_;
};

struct DeviceSequence {
  std::int32_t row = -1;     // of the decode batch; valid while DeviceKv says so
  bool tables_stale = true;  // the row's tables hold nothing of it
  std::int64_t pages_known = 0, metadata_known = 0, host_known = 0;  // entries (of each layer) that its tables hold
  bool has_selection = false;                                        // the row's selection buffers hold its newest one
  std::shared_ptr<std::byte> hot_state;                              // hot: [layers][H] blocks, then [layers][H] order
};

// Where kernels find the tables; device pointers. Row r of the decode batch; row max_batch: the prompt in work.
struct DeviceTables {
  std::int32_t* row_pages = nullptr;       // [max_batch + 1][layers][pages]: resident pages, or buffer, then ring pages
  std::int32_t* metadata_pages = nullptr;  // [max_batch + 1][metadata layers][pages]
  std::int32_t* host_pages = nullptr;      // [max_batch + 1][pages]
  kernels::cuda::HotRow* hot_rows = nullptr;  // [layers][max_batch + 1]; of a resident row only the tables
  std::int32_t* selections = nullptr;         // [layers][max_batch][max_selected]
  std::int32_t* selection_counts = nullptr;   // [layers][max_batch]
  std::int64_t pages = 0;                     // entries of one table
  std::int32_t layers = 0, metadata_layers = 0, max_batch = 0;
  std::int64_t max_selected = 0;

  [[nodiscard]] std::int32_t* rows_of(std::int64_t row, LayerId layer) const {
    return row_pages + (row * layers + layer.value()) * pages;
  }
  [[nodiscard]] kernels::cuda::HotRow* hot_rows_of(LayerId layer) const {
    return hot_rows + std::int64_t{layer.value()} * (max_batch + 1);
  }
  [[nodiscard]] std::int32_t* selection_counts_of(LayerId layer) const {
    return selection_counts + std::int64_t{layer.value()} * max_batch;
  }
  [[nodiscard]] std::int32_t* metadata_of(std::int64_t row, std::int32_t metadata_layer) const {
    return metadata_pages + (row * metadata_layers + metadata_layer) * pages;
  }
  [[nodiscard]] std::int32_t* selection_of(LayerId layer, std::int64_t row) const {
    return selections + (std::int64_t{layer.value()} * max_batch + row) * max_selected;
  }
};

class DeviceKv {
 public:
  // `device` lies in GPU memory, `host` in memory that the GPU reads in place. Everything passed outlives it.
  DeviceKv(storage::DevicePool& device, storage::HostPool& host, kernels::DenseBackend& backend,
           const kernels::cuda::DeviceStream& compute, const DeviceKvLimits& limits);

  [[nodiscard]] const KvGeometry& geometry() const { return device_.geometry(); }
  [[nodiscard]] const KvLayout& layout() const { return device_.layout(); }
  [[nodiscard]] const DeviceKvLimits& limits() const { return limits_; }
  [[nodiscard]] const DeviceTables& tables() const { return tables_; }
  [[nodiscard]] std::byte* row_pool() const { return device_.base(); }
  [[nodiscard]] std::byte* metadata_pool() const { return device_.metadata_base(); }
  [[nodiscard]] const std::byte* host_rows(LayerId layer) const { return host_.device_rows(layer); }

  // Before anything of a step: waits for copies that the step must not overtake. The caller knows that the device has
  // done the step kStepsUnderWay before: its pinned memory is free again.
  void begin_step();
  void apply(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);

  // Gives every sequence of a decode batch its row: result[i] is that of sequences[i], together 0 ... n - 1. Brings
  // their tables up to date.
  [[nodiscard]] std::vector<std::int32_t> place(std::span<SequenceKv* const> sequences);
  // Which layer's selection `layer` uses; its own unless told.
  void share_selection(LayerId layer, LayerId of) { selection_layer_[static_cast<std::size_t>(layer.value())] = of; }
  [[nodiscard]] LayerId selection_layer(LayerId layer) const {
    return selection_layer_[static_cast<std::size_t>(layer.value())];
  }
  // Fills the tables of row max_batch.
  void place_prompt(SequenceKv& kv);

  // Called once every layer has written `rows` new rows: the sequence grows by them, complete pages go to the host.
  void commit_rows(SequenceKv& kv, std::int64_t rows, TierTraffic& traffic);
  // Behind the step's last launch and commit: queues the copies.
  void end_step();
  // Waits for everything that is on its way.
  void synchronize() const;

  // Pinned memory of the step in work.
  [[nodiscard]] kernels::cuda::PinnedBlock& block() { return blocks_[step_ % blocks_.size()]; }

  enum class Direction { kToHost, kToDevice };
  // Rows [first, end) of a parked sequence (a prompt from the host), between the host pool and a buffer on the device
  // that holds position p at row p mod `buffer_rows` (a multiple of 64). Queued on `stream`; compute must get behind it
  // within the step.
  void move_parked_rows(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t end, std::byte* buffer,
                        std::int64_t buffer_rows, Direction direction, TierTraffic& traffic,
                        const kernels::cuda::DeviceStream& stream);
  // Its metadata pages that hold rows [first, end), between the host pool and a buffer of all its pages.
  void move_parked_metadata(const SequenceKv& kv, std::int32_t metadata_layer, std::int64_t first, std::int64_t end,
                            std::byte* buffer, Direction direction, TierTraffic& traffic);
  // Compute waits for all finished pages: before it writes host pages by itself.
  void wait_for_offloads();

 private:
  struct Moves {
    std::int64_t row_bytes = 0;
    std::byte* device = nullptr;
    std::vector<kernels::cuda::RowRun> runs;
    std::int64_t rows = 0;
  };
  struct Offload {
    kernels::cuda::PinnedBlock block;  // what the kernels read
    std::vector<Moves> moves;
    kernels::cuda::DeviceEvent done;
    std::uint64_t step = 0;
  };
  void enter_resident(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);
  void enter_hot(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);
  void seed_buffer(SequenceKv& kv);
  void flush(SequenceKv& kv, TierTraffic& traffic);
  [[nodiscard]] Moves list_rows(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                kernels::cuda::PinnedBlock& block) const;
  // Those that rows [first, end) lie in, named so that a position finds its page.
  [[nodiscard]] const std::int32_t* host_pages_of(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                                  kernels::cuda::PinnedBlock& block) const;
  [[nodiscard]] Moves list_metadata(const SequenceKv& kv, std::int64_t first, std::int64_t end,
                                    kernels::cuda::PinnedBlock& block) const;
  static void add_runs(Moves& moves, std::int64_t first, std::int64_t end, kernels::cuda::RowRun run);
  // Queues them; returns the bytes.
  std::int64_t move(const Moves& moves, Direction direction, kernels::cuda::PinnedBlock& block,
                    const kernels::cuda::DeviceStream& stream) const;
  [[nodiscard]] std::int64_t metadata_row_bytes() const;
  [[nodiscard]] kernels::cuda::HotRow hot_row(const SequenceKv& kv, std::int32_t layer,
                                              const std::int32_t* device_pages, const std::int32_t* host_pages) const;
  void move_selection(std::int32_t from, std::int32_t to);
  void sync_tables(SequenceKv& kv, std::int32_t row);
  template <class Id>
  void upload_table(const std::vector<std::vector<Id>>& table, std::int64_t from, std::int32_t* target);
  [[nodiscard]] DeviceSequence& device_of(SequenceKv& kv) const;
  [[nodiscard]] bool owns_row(const SequenceKv& kv) const;

  storage::DevicePool& device_;
  storage::HostPool& host_;
  const kernels::cuda::DeviceStream& compute_;
  DeviceKvLimits limits_;
  DeviceTables tables_;
  kernels::Array<std::int32_t> row_pages_, metadata_pages_, host_pages_, selections_, selection_counts_;
  kernels::Array<kernels::cuda::HotRow> hot_rows_;
  kernels::Array<std::uint16_t> fresh_order_;  // [largest H] 0, 1, ...
  DevicePieces hot_states_;
  std::vector<DeviceSequence*> rows_;     // [max_batch] whose row it is; null: nobody's
  std::vector<LayerId> selection_layer_;  // [layers]
  std::array<kernels::cuda::PinnedBlock, kStepsUnderWay> blocks_;
  // Seeding: outputs of the diff that nobody reads.
  kernels::Array<std::int32_t> seed_slots_;
  kernels::Array<kernels::cuda::SparseMiss> seed_misses_;
  kernels::Array<kernels::cuda::SparseDiffCounts> seed_counts_;
  std::uint64_t step_ = 0;
  kernels::cuda::DeviceStream offload_stream_;
  kernels::cuda::DeviceEvent step_written_;
  std::unique_ptr<Offload> next_offload_;               // of the step in work; null: no page was finished
  std::deque<std::unique_ptr<Offload>> offloads_;       // under way, oldest first
  std::deque<std::unique_ptr<Offload>> idle_offloads_;  // the one that has been queued longest first
};

}  // namespace hotset::sparse
