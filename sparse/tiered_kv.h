// Moves the rows of sequences between the device pool and the host pool, and tells where they lie: the executing side
// of sparse/sequence_kv.h. Decides nothing.
//
// Invariants of a sequence, after commit_rows:
// - resident: every complete page is also on the host (write-through); the unfinished tail is on the device only.
// - hot: rows [0, host_complete) are on the host; the newest min(length, C) rows are in the ring. A page goes to the
// host
//   when it is complete, which is before any of its ring slots is written again (C >= 65).
// - parked: every row is on the host.
// Thread: the stream that runs the sequences' steps; one TieredKv per stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "sparse/sequence_kv.h"
#include "storage/kv_pools.h"

namespace hotset::sparse {

// Counters of one step; blocks are counted per layer.
struct TierTraffic {
  std::int64_t hits = 0;
  std::int64_t ring_hits = 0;
  std::int64_t misses = 0;
  std::int64_t bytes_loaded = 0;     // host to device
  std::int64_t bytes_offloaded = 0;  // device to host
};

class TieredKv {
 public:
  // The pools and the backend outlive it. Both pools have the same geometry.
  TieredKv(storage::DevicePool& device, storage::HostPool& host, kernels::Backend& backend);

  [[nodiscard]] const KvGeometry& geometry() const { return device_.geometry(); }
  [[nodiscard]] const std::byte* device_base() const { return device_.base(); }

  void apply(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);

  // Appends the addresses of rows [first, first + rows) of a layer to `targets`: device page, ring, or (parked) host.
  void row_targets(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                   std::vector<std::byte*>& targets) const;

  // Called once every layer has written `rows` new rows: the sequence is that much longer, complete pages go to the
  // host.
  void commit_rows(SequenceKv& kv, std::int64_t rows, TierTraffic& traffic);

  // Appends the slots of rows [0, length) of a resident sequence.
  void all_slots(const SequenceKv& kv, LayerId layer, std::int64_t length, std::vector<std::int64_t>& slots) const;

  // Appends the slots of the selected blocks' rows below `length`, ascending. In hot mode missing blocks are loaded
  // first.
  void selected_slots(SequenceKv& kv, LayerId layer, std::span<const std::int32_t> blocks, std::int32_t block_tokens,
                      std::int64_t length, std::vector<std::int64_t>& slots, TierTraffic& traffic);

  // A resident sequence's page `tile`, or (parked) null: stage_tile brings it.
  [[nodiscard]] const std::byte* resident_tile(const SequenceKv& kv, LayerId layer, std::int64_t tile) const;
  // Copies the rows of page `tile` below `length` from the host to `target` (a page's bytes).
  void stage_tile(const SequenceKv& kv, LayerId layer, std::int64_t tile, std::int64_t length, std::byte* target,
                  TierTraffic& traffic);

 private:
  void enter_resident(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);
  void enter_hot(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);
  void append_device_pages(SequenceKv& kv, const KvOp& op) const;
  void flush(SequenceKv& kv, TierTraffic& traffic);
  void offload(SequenceKv& kv, std::int64_t first, std::int64_t end, TierTraffic& traffic);
  void load_misses(const SequenceKv& kv, LayerId layer, TierTraffic& traffic);

  [[nodiscard]] std::byte* device_row(const SequenceKv& kv, LayerId layer, std::int64_t position) const;
  [[nodiscard]] std::byte* host_row(const SequenceKv& kv, LayerId layer, std::int64_t position) const;
  [[nodiscard]] SlotId ring_slot(const SequenceKv& kv, LayerId layer, std::int64_t position) const;
  [[nodiscard]] SlotId buffer_slot(const SequenceKv& kv, LayerId layer, std::int64_t block_slot) const;

  void add_copy(const std::byte* source, std::byte* target) {
    sources_.push_back(source);
    targets_.push_back(target);
  }
  // Runs the copies collected so far, all of `bytes` each; returns the bytes moved.
  std::int64_t run_copies(std::int64_t bytes);

  storage::DevicePool& device_;
  storage::HostPool& host_;
  kernels::Backend& backend_;
  SparseDiff diff_;                        // scratch, reused
  std::vector<const std::byte*> sources_;  // scratch, reused
  std::vector<std::byte*> targets_;        // scratch, reused
};

}  // namespace hotset::sparse
