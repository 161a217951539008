// The plain class behind SparseKVCacheManager: asks the KvCachePlanner for the rows of a draft, whose stale rows
// it drops, tells which states its transitions are for, and keeps the books of complete pages for the host tier.
// Thread: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "actors/step_draft.h"
#include "actors/tier_page.h"
#include "core/result.h"

namespace hotset::actors {

struct PagedStep {
  StepPages pages;
  std::vector<TierPage> completed;  // host pages that the step fills up
};

class StepPager {
 public:
  explicit StepPager(const KvPlannerConfig& config) : planner_(config) {}

  Result<Admission> acquire(const KvDemand& demand);
  // Identities of the sequence's complete pages, which the host tier has to forget. Unknown ids give nothing.
  std::vector<PageIdentity> release(SequenceId id);
  [[nodiscard]] PagedStep plan(const StepDraft& draft);

  [[nodiscard]] KvCounters counters() const { return planner_.counters(); }

 private:
  struct Granted {
    std::shared_ptr<model::SequenceState> state;  // null until its first rows
    std::vector<HostPage> host_pages;             // [page]
    std::int64_t complete = 0;                    // pages filled by the steps planned so far
  };

  void note_complete_pages(const DraftRows& rows, const std::vector<sparse::KvOp>& ops,
                           std::vector<TierPage>& completed);

  KvCachePlanner planner_;
  std::unordered_map<SequenceId, Granted> granted_;
};

}  // namespace hotset::actors
