// The plain class behind SparseKVCacheManager: which sequence may start, in which mode it runs, and which pages it
// gets. It plans one step ahead of the device and never waits for it: pages that it frees are handed out again only in
// plans of later steps, which the stream runs later (sparse/sequence_kv.h).
//
// Rules (docs/architecture.md, sections 4, 6 and 7):
// - A sequence reserves, when admitted, every page that prompt + output (+ one overshoot row) may need on both tiers.
// So
//   nothing is overcommitted and a running sequence never waits for pages.
// - Dense requests and lengths up to the threshold are resident. Past the threshold a sequence is resident while the
// pool
//   has room for its whole length (--kv-mode auto|resident), else hot (auto|hot).
// - --kv-mode hot: hot from the first decode step past the threshold; until then resident (or a streamed prefill).
// - A hot sequence whose first decode step is past the threshold is prefilled from the host (mode parked) and enters
// hot
//   mode at that step. One with a shorter prompt is resident up to the threshold and reserves both: its resident pages
//   are still read by the step that makes it hot, so none of them can be one of its hot pages.
// - A prompt that is only scored (no output) may stay parked with any algorithm.
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
  bool sparse = false;  // the server's algorithm selects
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

  // kCapacityNever names the option when it could not run even alone; kLater when it has to wait for a release (nothing
  // is kept of it: ask again). kInvalidArgument for an empty prompt or a negative output.
  Result<Admission> acquire(const KvDemand& demand);

  // The most output tokens that a prompt of that length can ever get here (0: none; it may still be scored).
  [[nodiscard]] std::int64_t largest_output(std::int64_t prompt_tokens) const;

  // Cache operations that have to precede `rows` new rows of a granted sequence in the next step. Steps of a sequence
  // are planned in order, first_position being the number of rows planned so far. Prefill rows lie in the prompt; a
  // decode step has one row behind it. Pages that the operations free are handed out again from the sequence's next
  // plan or release on.
  std::vector<sparse::KvOp> plan_rows(SequenceId id, std::int64_t first_position, std::int64_t rows, bool prefill);

  // The mode that the sequence has after its last plan.
  [[nodiscard]] sparse::KvMode mode(SequenceId id) const;

  // Gives everything back; also for a sequence that waits. Unknown ids are ignored (a cancel may come twice).
  void release(SequenceId id);

  [[nodiscard]] KvCounters counters() const;

 private:
  // How a sequence runs from its first row to its last.
  enum class Course : std::uint8_t {
    kResident,
    kHot,         // resident up to the threshold, or parked when the prompt reaches it; then hot
    kPromptOnly,  // parked
  };
  struct Option {
    Course course = Course::kResident;
    std::int64_t device_pages = 0;  // to reserve
  };
  struct Sequence {
    KvDemand demand;
    Course course = Course::kResident;
    sparse::KvMode mode = sparse::KvMode::kParked;
    std::int64_t rows = 0;                                // planned so far
    std::int32_t device_reserved = 0, host_reserved = 0;  // not yet taken
    std::vector<HostPage> host_pages;
    std::vector<PageId> device_pages;
    std::vector<PageId> leaving;             // freed by the last plan
    std::size_t settled = 0;                 // pages before it are in no copy
    std::vector<storage::PageState> states;  // [page], as they are once the stream has run every plan
  };

  [[nodiscard]] std::vector<Option> options(const KvDemand& demand) const;
  [[nodiscard]] Result<void> can_ever_run(const KvDemand& demand) const;
  [[nodiscard]] std::int64_t hot_pages() const;
  [[nodiscard]] sparse::KvMode mode_for(const Sequence& sequence, bool prefill) const;
  [[nodiscard]] Sequence& find(SequenceId id);

  void settle(Sequence& sequence);
  void add_host_pages(Sequence& sequence, std::int64_t end, std::vector<sparse::KvOp>& ops);
  void add_device_pages(Sequence& sequence, std::int64_t end, std::vector<sparse::KvOp>& ops);
  void enter_hot(Sequence& sequence, std::vector<sparse::KvOp>& ops);
  void take_device_pages(Sequence& sequence, std::int64_t count, std::vector<PageId>& pages);
  void finish_pages(Sequence& sequence, std::int64_t end);

  KvPlannerConfig config_;
  storage::PagePool<PageId> device_;
  storage::PagePool<HostPage> host_;
  std::unordered_map<SequenceId, Sequence> sequences_;  // granted
  std::int64_t entered_hot_ = 0, entered_resident_ = 0, streamed_prefills_ = 0, pages_written_through_ = 0;
};

}  // namespace hotset::actors
