// The plain class behind SparseKVCacheManager: which sequence may start, in which mode it runs, and which pages it gets.
// It plans one step ahead of the device and never waits for it: pages that it frees are handed out again only in plans of
// later steps, which the stream runs later (sparse/sequence_kv.h).
//
// Rules (docs/architecture.md, sections 4, 6 and 7):
// - A sequence reserves, when admitted, every page that prompt + output (+ one overshoot row) may need on both tiers. So
//   nothing is overcommitted and a running sequence never waits for pages.
// - Dense requests and lengths up to the threshold are resident. Past the threshold a sequence is resident while the pool
//   has room for its whole length (--kv-mode auto|resident), else hot (auto|hot).
// - --kv-mode hot: hot from the first decode step past the threshold; until then resident (or a streamed prefill).
// - A prompt that does not fit the pool, of a sequence that will decode past the threshold, is prefilled from the host
//   (mode parked) and enters hot mode at its first decode step.
// Thread: one owner.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/config.h"
#include "core/kv_geometry.h"
#include "core/result.h"
#include "sparse/hot_buffer.h"
#include "sparse/sequence_kv.h"
#include "storage/page_pool.h"
#include "storage/page_state.h"

namespace hotset::actors {

struct KvPlannerConfig {
  KvGeometry geometry;
  std::int32_t device_pages = 0;  // (--device-kv-tokens / 64) * layers
  std::int32_t host_pages = 0;    // each holds 64 tokens of every layer
  KvModeChoice mode = KvModeChoice::kAuto;
  bool sparse = false;            // the server's algorithm selects
  std::int64_t threshold = 0;
  sparse::HotBufferShape hot_shape;  // when sparse
};

struct KvDemand {
  SequenceId id;
  std::int64_t prompt_tokens = 0;
  std::int64_t max_new_tokens = 0;
};

enum class Admission { kGranted, kLater };

struct KvCounters {
  std::int32_t device_pages_total = 0, device_pages_free = 0;
  std::int32_t host_pages_total = 0, host_pages_free = 0;
  std::int32_t resident = 0, hot = 0, parked = 0;  // sequences
  std::int64_t entered_hot = 0, entered_resident = 0, streamed_prefills = 0, pages_written_through = 0;
};

class KvCachePlanner {
 public:
  explicit KvCachePlanner(const KvPlannerConfig& config);

  // kCapacityNever names the option when it could not run even alone; kLater when it has to wait for a release.
  Result<Admission> acquire(const KvDemand& demand);

  // The most output tokens that a prompt of that length can ever get here (0: it can't even be prefilled).
  [[nodiscard]] std::int64_t largest_output(std::int64_t prompt_tokens) const;

  // Cache operations that have to precede `rows` new rows of a granted sequence in the next step. Steps of a sequence are
  // planned in order, first_position being the number of rows planned so far.
  std::vector<sparse::KvOp> plan_rows(SequenceId id, std::int64_t first_position, std::int64_t rows, bool prefill);

  // The mode that the sequence has after its last plan.
  [[nodiscard]] sparse::KvMode mode(SequenceId id) const;

  // Gives everything back; also for a sequence that waits. Unknown ids are ignored (a cancel may come twice).
  void release(SequenceId id);

  [[nodiscard]] KvCounters counters() const;

 private:
  // The implementation's members follow (free pools, per-sequence pages and reservations).
};

}  // namespace hotset::actors
