// What one sequence used of the cache: for the accounting of a request and the same numbers as metrics.
#pragma once

#include <cstdint>

namespace hotset {
struct KvLayout;
}

namespace hotset::sparse {

struct SequenceKv;
struct TierTraffic;

// Bytes are the largest that were held at the end of any step; counts are since the sequence began (TierTraffic).
struct KvUsage {
  std::int64_t device_row_bytes = 0;       // device pages: resident rows, or hot buffers and rings
  std::int64_t device_metadata_bytes = 0;  // metadata pages on the device
  std::int64_t device_table_bytes = 0;     // page tables and the state of hot buffers
  std::int64_t host_bytes = 0;             // host pages: rows and metadata
  std::int64_t hits = 0;                   // selected blocks found in hot buffers
  std::int64_t ring_hits = 0;              // selected blocks found in rings
  std::int64_t misses = 0;                 // selected blocks that had to be loaded
  std::int64_t bytes_loaded = 0;           // host to device
  std::int64_t bytes_offloaded = 0;        // device to host

  // Sequences that ran beside each other.
  KvUsage& operator+=(const KvUsage& other) {
    device_row_bytes += other.device_row_bytes;
    device_metadata_bytes += other.device_metadata_bytes;
    device_table_bytes += other.device_table_bytes;
    host_bytes += other.host_bytes;
    hits += other.hits;
    ring_hits += other.ring_hits;
    misses += other.misses;
    bytes_loaded += other.bytes_loaded;
    bytes_offloaded += other.bytes_offloaded;
    return *this;
  }
  bool operator==(const KvUsage&) const = default;
};

// Brings `usage` up to date after a step of the sequence; `traffic` is its sum since the sequence began.
void measure(const SequenceKv& kv, const KvLayout& layout, const TierTraffic& traffic, KvUsage& usage);
// The counts alone.
void count_traffic(const TierTraffic& traffic, KvUsage& usage);

}  // namespace hotset::sparse
