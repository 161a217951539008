// Moves the rows of sequences between the device pool and the host pool, and tells where they lie: the executing side
// of sparse/sequence_kv.h. Decides nothing.
//
// Metadata pages go where their page's rows go: in resident and hot mode all of them are on the device, and those of
// complete pages on the host too; in parked mode they are on the host.
//
// Invariants of a sequence, after commit_rows:
// - resident: every complete page is also on the host (write-through); the unfinished tail is on the device only.
// - hot: rows [0, host_complete) are on the host; the newest min(length, C) rows are in the ring. A page goes to the
//   host when it is complete, which is before any of its ring slots is written again (C >= 65).
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

// Blocks are counted per layer. Loading the last selection on entry to hot mode counts as bytes, not as misses.
struct TierTraffic {
  std::int64_t hits = 0;
  std::int64_t ring_hits = 0;
  std::int64_t misses = 0;
  std::int64_t bytes_loaded = 0;     // host to device, metadata included
  std::int64_t bytes_offloaded = 0;  // device to host

  TierTraffic& operator+=(const TierTraffic& other) {
    hits += other.hits;
    ring_hits += other.ring_hits;
    misses += other.misses;
    bytes_loaded += other.bytes_loaded;
    bytes_offloaded += other.bytes_offloaded;
    return *this;
  }
};

class TieredKv {
 public:
  // The pools and the backend outlive it. Both pools have the same layout.
  TieredKv(storage::DevicePool& device, storage::HostPool& host, kernels::Backend& backend);

  [[nodiscard]] const KvGeometry& geometry() const { return device_.geometry(); }
  [[nodiscard]] const KvLayout& layout() const { return device_.layout(); }
  [[nodiscard]] const std::byte* device_base() const { return device_.base(); }

  void apply(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);

  // Appends the addresses of rows [first, first + rows) of a layer to `targets`: device page, ring, or (parked) host.
  void row_targets(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                   std::vector<std::byte*>& targets) const;

  // Appends, for rows [first, first + rows) of a layer that keeps metadata, the metadata page of each row and its place
  // in it.
  void metadata_targets(const SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                        std::vector<std::byte*>& pages, std::vector<std::int32_t>& offsets) const;
  // Appends the metadata pages of rows [0, length) of a layer that keeps metadata: the device's, or (parked) the
  // host's.
  void metadata_pages(const SequenceKv& kv, LayerId layer, std::int64_t length,
                      std::vector<const std::byte*>& pages) const;

  // Called once every layer has written `rows` new rows: the sequence grows by them, complete pages go to the host.
  void commit_rows(SequenceKv& kv, std::int64_t rows, TierTraffic& traffic);

  // Appends the slots of rows [0, length) of a resident sequence.
  void all_slots(const SequenceKv& kv, LayerId layer, std::int64_t length, std::vector<std::int64_t>& slots) const;

  // Appends the slots of the selected blocks' rows below `length`, ascending, and remembers the selection. In hot mode
  // missing blocks are loaded first.
  void selected_slots(SequenceKv& kv, LayerId layer, std::span<const std::int32_t> blocks, std::int32_t block_tokens,
                      std::int64_t length, std::vector<std::int64_t>& slots, TierTraffic& traffic);

  // Of a prompt's row: as selected_slots() for a resident sequence, without remembering anything.
  void resident_slots(const SequenceKv& kv, LayerId layer, std::span<const std::int32_t> blocks,
                      std::int32_t block_tokens, std::int64_t length, std::vector<std::int64_t>& slots) const;
  // Copies the given rows of a parked sequence from the host to consecutive rows at `target`.
  void stage_rows(const SequenceKv& kv, LayerId layer, std::span<const std::int64_t> positions, std::byte* target,
                  TierTraffic& traffic);

  // A resident sequence's page `tile`, or (parked) null: stage_tile brings it.
  [[nodiscard]] const std::byte* resident_tile(const SequenceKv& kv, LayerId layer, std::int64_t tile) const;
  // Copies the rows of page `tile` below `length` from the host to `target` (a page's bytes).
  void stage_tile(const SequenceKv& kv, LayerId layer, std::int64_t tile, std::int64_t length, std::byte* target,
                  TierTraffic& traffic);

  // The copy of a row on the host; meaningful below kv.host_complete.
  [[nodiscard]] std::byte* host_row(const SequenceKv& kv, LayerId layer, std::int64_t position) const;
  // The row on the device: of a resident sequence any, of a hot one those in the ring.
  [[nodiscard]] std::byte* device_row(const SequenceKv& kv, LayerId layer, std::int64_t position) const;
  // Hot: the oldest position in the ring once the row of this step is there.
  [[nodiscard]] std::int64_t ring_begin(const SequenceKv& kv, LayerId layer) const;
  struct BufferedBlock {
    std::int64_t first = 0;  // position
    std::int64_t rows = 0;
    const std::byte* device = nullptr;
  };
  // Hot: what the buffer holds now.
  [[nodiscard]] std::vector<BufferedBlock> buffered_blocks(const SequenceKv& kv, LayerId layer) const;

 private:
  void enter_resident(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);
  void enter_hot(SequenceKv& kv, const KvOp& op, TierTraffic& traffic);
  void seed_buffer(SequenceKv& kv, LayerId layer, TierTraffic& traffic);
  void flush(SequenceKv& kv, TierTraffic& traffic);
  void offload(SequenceKv& kv, std::int64_t first, std::int64_t end, TierTraffic& traffic);
  void load_rows(const SequenceKv& kv, LayerId layer, std::int64_t first, TierTraffic& traffic);
  void load_metadata(const SequenceKv& kv, TierTraffic& traffic);
  void load_misses(const SequenceKv& kv, LayerId layer, TierTraffic& traffic);

  [[nodiscard]] SlotId resident_slot(const SequenceKv& kv, LayerId layer, std::int64_t position) const;
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
