// The plain class behind SparseKVCacheManager: which sequence may start, in which mode it runs, and which pages it
// gets. It plans one step ahead of the device and never waits for it: the stream applies a step's transitions in their
// order, then the rows' operations, and runs steps in their order. So a page that a transition frees may be given out
// again in the same step, by later transitions and by rows.
//
// Rules (docs/control_plane.md, "Modes"):
// - Host pages for prompt + output (+ one overshoot row) are reserved at admission. Nothing is overcommitted there.
// - Device pages (rows and metadata) are taken as a sequence grows: all that lies there is also on the host, or can be
//   put there. At admission and on resuming, what the prompt and the first decode row need is kept back, and a
//   watermark of one page a layer for every growing sequence must be free beside it.
// - A sequence is resident while lengths up to the threshold (or a dense algorithm) make it attend to everything. Past
//   the threshold: --kv-mode resident: resident; hot: hot from the first decode row on; auto: resident until pressure.
//   A prompt is computed resident when it fits, else streamed (parked) when the first decode row may be hot or when it
//   is only scored.
// - Room for the rows of a step, while it is short: the resident sequence past its threshold that frees most is demoted
//   to hot; when there is none, the sequence that was admitted last is parked and its rows are deferred.
// - A parked sequence comes back by acquire() with `resume`, the oldest first; nothing new is admitted before.
// - Promotion (auto): when nobody waits and no sequence was demoted, parked or told to wait in the last kCalmSteps
//   steps, and the free pages hold all that the oldest hot sequence may ever have, the watermark and an eighth of the
//   pool, it becomes resident. So between a demotion and the next promotion lie more than kCalmSteps steps.
//
// Progress: a sequence is parked only while another one holds or wants pages, and the youngest of those goes first; so
// of the sequences that hold or want any, the one admitted first is never parked. Alone in the pools it has room for
// every step (KvNeeds::can_ever_run), so it ends. New ones wait for the parked ones, so each is the oldest one day.
// Thread: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "actors/kv_demand.h"
#include "core/result.h"
#include "sparse/sequence_kv.h"
#include "storage/page_pool.h"
#include "storage/page_state.h"

namespace hotset::actors {

enum class Admission { kGranted, kLater };

// New rows of a sequence in a step. Prefill rows lie in the prompt; a decode step has one row behind it.
struct KvRows {
  SequenceId id;
  std::uint32_t turn = 0;  // how often the sequence had been resumed when the rows were drafted
  std::int64_t first_position = 0;
  std::int64_t rows = 0;
  bool prefill = false;
};

struct KvTransition {
  SequenceId id;
  std::vector<sparse::KvOp> ops;
};

struct KvStepPlan {
  std::vector<std::optional<std::vector<sparse::KvOp>>> ops;  // [row]; nullopt: these rows do not run
  std::vector<KvTransition> transitions;                      // applied in their order, before the rows' operations
  std::vector<SequenceId> deferred;                           // parked by this step
};

struct KvCounters {
  std::int32_t device_pages_total = 0, device_pages_free = 0;
  std::int32_t metadata_pages_total = 0, metadata_pages_free = 0;
  std::int32_t host_pages_total = 0, host_pages_free = 0;
  std::int64_t device_row_bytes = 0, device_metadata_bytes = 0, host_bytes = 0;  // of the pages taken
  std::int32_t resident = 0, hot = 0, parked = 0;                                // sequences
  std::int64_t entered_hot = 0, entered_resident = 0, entered_parked = 0;
  std::int64_t demoted = 0, promoted = 0, resumed = 0;  // what of it was due to pressure, or to its end
  std::int64_t streamed_prefills = 0, pages_written_through = 0;
};

class KvCachePlanner {
 public:
  static constexpr std::int64_t kCalmSteps = 64;

  explicit KvCachePlanner(const KvPlannerConfig& config);

  // kCapacityNever names the option when it could not run even alone; kLater when it has to wait (nothing is kept of
  // the question: ask again). kInvalidArgument for an empty prompt or a negative output. With `resume`: for a parked
  // sequence; kLater also for one that is unknown by now.
  Result<Admission> acquire(const KvDemand& demand);

  [[nodiscard]] const KvNeeds& needs() const { return needs_; }

  // Cache operations that precede the rows of the next step; at most one KvRows of a sequence. Rows of sequences that
  // were released, parked, or resumed after the rows were drafted get none: they are stale and must not run.
  [[nodiscard]] KvStepPlan plan_step(std::span<const KvRows> rows);

  // The mode that the sequence has once the stream has run every plan.
  [[nodiscard]] sparse::KvMode mode(SequenceId id) const;

  // Gives everything back; also for a parked one. Unknown ids are ignored (a cancel may come twice).
  void release(SequenceId id);

  [[nodiscard]] KvCounters counters() const;

 private:
  // [layer][page] of one kind that a sequence has on the device. A layer's pages follow each other where the pool has
  // room, so that what moves at once moves in long pieces.
  template <class Id>
  using PageLists = std::vector<std::vector<Id>>;
  template <class Id>
  [[nodiscard]] static std::int64_t count(const PageLists<Id>& lists) {
    return lists.empty() ? 0 : static_cast<std::int64_t>(lists.size() * lists.front().size());
  }
  struct Sequence {
    KvDemand demand;
    std::uint64_t order = 0;  // of admission
    std::uint32_t turn = 0;
    sparse::KvMode mode = sparse::KvMode::kParked;
    bool waits = false;         // parked until it is resumed
    bool streamed = false;      // its prompt's rows go to the host
    bool enters_hot = false;    // from parked, at its next decode row; else it becomes resident
    std::int64_t rows = 0;      // planned so far
    std::int64_t step_end = 0;  // rows after the step that is being planned
    DevicePages reserved;       // kept back, not yet taken
    std::int32_t host_reserved = 0;
    std::vector<HostPage> host_pages;
    PageLists<PageId> device_pages;
    PageLists<MetadataPageId> metadata_pages;
    std::vector<storage::PageState> states;  // [page], as they are once the stream has run every plan

    [[nodiscard]] DevicePages held() const {
      return {.rows = count(device_pages) + reserved.rows, .metadata = count(metadata_pages) + reserved.metadata};
    }
    [[nodiscard]] bool in_prompt() const { return rows < demand.prompt_tokens; }
  };
  // A way to go on from here.
  struct Course {
    bool streamed = false;
    bool enters_hot = false;
    bool may_demote = false;  // others, to make room for it
    DevicePages need;
  };

  [[nodiscard]] std::vector<Course> courses(const Sequence& sequence) const;
  Result<Admission> admit(const KvDemand& demand);
  Admission resume(SequenceId id);
  [[nodiscard]] bool place(Sequence& sequence);
  [[nodiscard]] bool fits_beside_others(const DevicePages& need) const;
  [[nodiscard]] bool demote_until_it_fits(const DevicePages& need);
  [[nodiscard]] DevicePages available() const;
  [[nodiscard]] DevicePages watermark() const;

  [[nodiscard]] Sequence* runnable(const KvRows& rows);
  [[nodiscard]] DevicePages missing(const Sequence& sequence) const;
  void make_room(KvStepPlan& plan);
  void enter_due_hot_modes();
  void promote_one();
  [[nodiscard]] std::int64_t demotion_gain(const Sequence& sequence) const;
  [[nodiscard]] Sequence* best_demotion();
  [[nodiscard]] Sequence& youngest();

  void demote(Sequence& sequence);
  void park(Sequence& sequence, KvStepPlan& plan);

  // kv_cache_planner_pages.cpp. Transitions ahead of the rows: from resident, from both others, from hot.
  void enter_hot(Sequence& sequence);
  void enter_parked(Sequence& sequence);
  void enter_resident(Sequence& sequence);

  void to_hot(Sequence& sequence, sparse::KvOp& op);
  void to_resident(Sequence& sequence, sparse::KvOp& op);
  std::vector<sparse::KvOp> row_ops(Sequence& sequence, bool prefill);
  void add_host_pages(Sequence& sequence, std::vector<sparse::KvOp>& ops);
  void enter_from_host(Sequence& sequence, std::vector<sparse::KvOp>& ops);
  void grow(Sequence& sequence, std::vector<sparse::KvOp>& ops);
  void finish_pages(Sequence& sequence);

  void leave_device(Sequence& sequence);
  void keep_back(Sequence& sequence, const DevicePages& pages);
  void drop_reservation(Sequence& sequence);
  void take_rows(Sequence& sequence, std::int64_t pages, std::vector<PageId>& taken);
  void take_metadata(Sequence& sequence, std::int64_t pages, std::vector<MetadataPageId>& taken);
  void give_back_rows(Sequence& sequence);

  KvPlannerConfig config_;
  KvNeeds needs_;
  storage::PagePool<PageId> device_;
  storage::PagePool<MetadataPageId> metadata_;
  storage::PagePool<HostPage> host_;
  std::map<SequenceId, Sequence> sequences_;  // granted; stable addresses
  std::vector<KvTransition> pending_;         // for the next step
  std::uint64_t admitted_ = 0;
  std::int64_t step_ = 0;
  std::int64_t pressed_ = -kCalmSteps;  // the last step in which somebody was demoted, parked or told to wait
  KvCounters counted_;                  // the events; the rest is filled in by counters()
};

}  // namespace hotset::actors
