// What a sequence asks of the pools, what it needs of them in each mode, and what could never run. Plain values and
// arithmetic: who gets pages, and when, is decided in actors/kv_cache_planner.h.
#pragma once

#include <cstdint>

#include "core/config.h"
#include "core/ids.h"
#include "core/kv_geometry.h"
#include "core/result.h"
#include "sparse/hot_buffer.h"

namespace hotset::actors {

struct KvPlannerConfig {
  KvLayout layout;
  std::int32_t device_pages = 0;    // row pages: (--device-kv-tokens / 64) * layers
  std::int32_t metadata_pages = 0;  // each holds the metadata of 64 tokens in one layer
  std::int32_t host_pages = 0;      // each holds rows and metadata of 64 tokens in every layer
  KvModeChoice mode = KvModeChoice::kAuto;
};

struct KvDemand {
  SequenceId id;
  std::int64_t prompt_tokens = 0;
  std::int64_t max_new_tokens = 0;   // 0: the prompt is only scored
  bool sparse = false;               // generated tokens past the threshold attend to a selection
  bool keeps_metadata = false;       // its algorithm needs the server's metadata
  std::int64_t threshold = 0;        // when sparse
  sparse::HotBufferShape hot_shape;  // when sparse
  bool resume = false;               // it was granted before and parked since; the other fields are not looked at
};

// Pages of the two device pools.
struct DevicePages {
  std::int64_t rows = 0;
  std::int64_t metadata = 0;

  bool operator==(const DevicePages&) const = default;
};

// Immutable.
class KvNeeds {
 public:
  explicit KvNeeds(const KvPlannerConfig& config);

  // Rows that it may ever have: prompt + output + 1, because a stop is known one step late. Cut to 2^41, so that sums
  // cannot overflow.
  [[nodiscard]] static std::int64_t tokens(const KvDemand& demand);
  // Whether a generated token whose length (position + 1) is `length` attends to a selection.
  [[nodiscard]] static bool selects_at(const KvDemand& demand, std::int64_t length) {
    return demand.sparse && length > demand.threshold;
  }

  [[nodiscard]] DevicePages resident(const KvDemand& demand, std::int64_t rows) const;
  [[nodiscard]] DevicePages hot(const KvDemand& demand, std::int64_t rows) const;
  // While its prompt is being computed in resident mode, its first decode row included.
  [[nodiscard]] DevicePages resident_prompt(const KvDemand& demand) const;
  // From the first row of a streamed prompt on: what its first decode row will take.
  [[nodiscard]] DevicePages streamed_prompt(const KvDemand& demand) const;

  // Whether its prompt may be computed from the host pool: it is only scored, or the first decode row may be hot.
  [[nodiscard]] bool may_stream(const KvDemand& demand) const;

  // kCapacityNever names the option when it could not run even alone; kInvalidArgument for an empty prompt or a
  // negative output.
  [[nodiscard]] Result<void> can_ever_run(const KvDemand& demand) const;
  // The most output tokens that such a prompt can ever get here (0: none; it may still be scored). max_new_tokens is
  // not looked at.
  [[nodiscard]] std::int64_t largest_output(KvDemand demand) const;

 private:
  [[nodiscard]] bool fits(const DevicePages& pages) const;
  [[nodiscard]] std::int64_t metadata_of(const KvDemand& demand, std::int64_t rows) const;

  KvPlannerConfig config_;
};

}  // namespace hotset::actors
