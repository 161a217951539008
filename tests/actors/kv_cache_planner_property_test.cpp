// Random requests through scheduler, cache manager and a slow model of the stream that knows who owns which page. Every
// message may take its time: drafts, questions, answers and results are delivered in random order, each kind in its
// own.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <variant>
#include <vector>

#include "actors/scheduler.h"
#include "actors/selection_planner.h"
#include "actors/step_assembler.h"
#include "actors/step_pager.h"
#include "core/concat.h"
#include "tests/seed.h"

namespace hotset::actors {
namespace {

using sparse::KvMode;
using sparse::KvOp;

struct Seen {
  std::int64_t steps = 0, granted = 0, later = 0, never = 0, cancelled = 0, ended = 0, failed = 0;
  std::int64_t demoted = 0, promoted = 0, parked = 0, resumed = 0, streamed = 0, stale = 0;
  std::int64_t resident_rows = 0, hot_rows = 0, streamed_rows = 0;
};

// Executes plans as sparse/tiered_kv.h does, with page numbers in place of rows.
class SlowStream {
 public:
  SlowStream(const KvPlannerConfig& config, std::mt19937_64& random, Seen& seen)
      : config_(config), random_(random), seen_(seen) {}

  void add(SequenceId id, const SharedPolicy& policy, std::int64_t prompt) {
    sequences_[id] = {.policy = policy, .prompt = prompt};
  }
  // The manager took the pages back after the plans so far.
  void forget(SequenceId id) { disown(id); }

  model::StepResult run(const model::StepPlan& plan) {
    ++seen_.steps;
    for (const model::SequenceTransition& transition : plan.transitions) {
      if (transition.state == nullptr) ADD_FAILURE() << "a transition without a state";
      if (transition.state->failed) continue;
      for (const KvOp& op : transition.ops) apply(*transition.state, op);
    }
    model::StepResult result;
    result.step = plan.step;
    result.deferred = plan.deferred;
    for (const model::SequenceStep& step : plan.sequences) {
      result.sequences.push_back({.id = step.state->kv.id});
      if (!step.state->failed) run_rows(step, result.sequences.back());
    }
    return result;
  }

 private:
  struct Sequence {
    SharedPolicy policy;
    std::int64_t prompt = 0;
    std::vector<PageId> device;
    std::vector<MetadataPageId> metadata;
    std::vector<HostPage> host;
  };

  void disown(SequenceId id) {
    std::erase_if(device_, [id](const auto& entry) { return entry.second == id; });
    std::erase_if(metadata_, [id](const auto& entry) { return entry.second == id; });
    std::erase_if(host_, [id](const auto& entry) { return entry.second == id; });
  }
  template <class Page>
  void own(std::map<Page, SequenceId>& owners, Page page, SequenceId id, std::int32_t pages) {
    EXPECT_TRUE(page.value() >= 0 && page.value() < pages);
    EXPECT_TRUE(owners.emplace(page, id).second) << "page " << page.value() << " has two owners";
  }
  void drop_rows(Sequence& sequence) {
    for (const PageId page : sequence.device) device_.erase(page);
    sequence.device.clear();
  }

  void apply(model::SequenceState& state, const KvOp& op) {
    sparse::SequenceKv& kv = state.kv;
    Sequence& sequence = sequences_.at(kv.id);
    const auto layers = static_cast<std::size_t>(config_.layout.rows.layers);
    const auto pages = static_cast<std::size_t>(pages_for_tokens(kv.length));
    if (op.kind == KvOp::Kind::kPark || op.kind == KvOp::Kind::kEnterHot) drop_rows(sequence);
    if (op.kind == KvOp::Kind::kPark) {
      for (const MetadataPageId page : sequence.metadata) metadata_.erase(page);
      sequence.metadata.clear();
    }
    for (const HostPage page : op.host_pages) own(host_, page, kv.id, config_.host_pages);
    for (const PageId page : op.device_pages) own(device_, page, kv.id, config_.device_pages);
    for (const MetadataPageId page : op.metadata_pages) own(metadata_, page, kv.id, config_.metadata_pages);
    sequence.host.insert(sequence.host.end(), op.host_pages.begin(), op.host_pages.end());
    sequence.device.insert(sequence.device.end(), op.device_pages.begin(), op.device_pages.end());
    sequence.metadata.insert(sequence.metadata.end(), op.metadata_pages.begin(), op.metadata_pages.end());
    const std::size_t metadata =
        kv.keeps_metadata ? pages * static_cast<std::size_t>(config_.layout.metadata_layers) : 0;
    switch (op.kind) {
      case KvOp::Kind::kAddHostPages: EXPECT_FALSE(op.host_pages.empty()); return;
      case KvOp::Kind::kAddDevicePages: EXPECT_EQ(kv.mode, KvMode::kResident); return;
      case KvOp::Kind::kAddMetadataPages: EXPECT_NE(kv.mode, KvMode::kParked); return;
      case KvOp::Kind::kEnterResident:
        EXPECT_EQ(kv.mode, KvMode::kParked);
        EXPECT_EQ(op.device_pages.size(), pages * layers);
        EXPECT_EQ(op.metadata_pages.size(), metadata);
        kv.mode = KvMode::kResident;
        return;
      case KvOp::Kind::kEnterHot:
        EXPECT_NE(kv.mode, KvMode::kHot);
        ASSERT_NE(sequence.policy, nullptr);
        EXPECT_EQ(op.shape, sequence.policy->hot_shape);
        EXPECT_EQ(op.device_pages.size(), static_cast<std::size_t>(sparse::hot_pages_of(op.shape).total()) * layers);
        EXPECT_EQ(op.metadata_pages.size(), kv.mode == KvMode::kParked ? metadata : 0);
        kv.mode = KvMode::kHot;
        return;
      case KvOp::Kind::kPark:
        EXPECT_NE(kv.mode, KvMode::kParked);
        kv.mode = KvMode::kParked;
        return;
    }
  }

  void run_rows(const model::SequenceStep& step, model::SequenceResult& result) {
    model::SequenceState& state = *step.state;
    for (const KvOp& op : step.ops) apply(state, op);
    const Sequence& sequence = sequences_.at(state.kv.id);
    EXPECT_EQ(step.first_position, state.kv.length);
    check_mode(step, sequence);
    state.kv.length += step.rows;
    const auto pages = pages_for_tokens(state.kv.length);
    EXPECT_EQ(static_cast<std::int64_t>(sequence.host.size()), pages);
    if (state.kv.mode == KvMode::kResident) {
      EXPECT_EQ(static_cast<std::int64_t>(sequence.device.size()), pages * config_.layout.rows.layers);
    }
    const bool metadata = state.kv.keeps_metadata && state.kv.mode != KvMode::kParked;
    EXPECT_EQ(static_cast<std::int64_t>(sequence.metadata.size()),
              metadata ? pages * config_.layout.metadata_layers : 0);
    if (!step.sample) return;
    if (step.tokens.empty()) {
      EXPECT_GE(state.last_token, 0);
    }
    if (random_() % 4000 == 0) {
      state.failed = true;
      result.error = "not a number";
      disown(state.kv.id);
      ++seen_.failed;
      return;
    }
    result.sampled = true;
    result.token.token = random_() % 1000 == 0 ? 1 : 50;
    state.last_token = result.token.token;
  }

  void check_mode(const model::SequenceStep& step, const Sequence& sequence) {
    const KvMode mode = step.state->kv.mode;
    if (config_.mode == KvModeChoice::kResident) {
      EXPECT_EQ(mode, KvMode::kResident);
    }
    if (step.prefill) {
      EXPECT_NE(mode, KvMode::kHot);
      ++(mode == KvMode::kResident ? seen_.resident_rows : seen_.streamed_rows);
      return;
    }
    EXPECT_NE(mode, KvMode::kParked);
    ++(mode == KvMode::kResident ? seen_.resident_rows : seen_.hot_rows);
    const bool selects = sequence.policy != nullptr && sequence.policy->selection.sparse_at(step.first_position + 1);
    EXPECT_EQ(step.selection != nullptr, selects);
    if (!selects) {
      EXPECT_EQ(mode, KvMode::kResident);
    } else if (config_.mode == KvModeChoice::kHot) {
      EXPECT_EQ(mode, KvMode::kHot);
    }
  }

  KvPlannerConfig config_;
  std::mt19937_64& random_;
  Seen& seen_;
  std::map<SequenceId, Sequence> sequences_;
  std::map<PageId, SequenceId> device_;
  std::map<MetadataPageId, SequenceId> metadata_;
  std::map<HostPage, SequenceId> host_;
};

class Engine {
 public:
  Engine(std::mt19937_64& random, Seen& seen)
      : random_(random),
        seen_(seen),
        config_(random_config()),
        scheduler_({.max_batch = calm_ ? 8 : pick(1, 8), .prefill_chunk = calm_ ? 100 : pick(1, 100), .max_queue = 16}),
        needs_(config_),
        pager_(config_),
        stream_(config_, random, seen) {}

  void run(int actions) {
    for (int i = 0; i < actions && !testing::Test::HasFailure(); ++i) {
      const bool left_alone = calm_ && last_id_ >= 8;
      switch (pick(0, 9)) {
        case 0:
          if (!left_alone && alive_.size() < most_alive_) submit();
          break;
        case 1:
          if (!left_alone) cancel();
          break;
        default: move(static_cast<int>(pick(0, 5)));
      }
    }
    // Without new requests everything ends: each round moves a step, and a row of somebody at least every other one.
    std::int64_t rounds = 0;
    for (; !idle() && rounds < 40'000 && !testing::Test::HasFailure(); ++rounds) {
      for (const int kind : {0, 1, 2, 3, 4, 5}) move(kind);
    }
    ASSERT_TRUE(idle()) << "not everything ended";
    while (!direct_.empty()) manage_question();
    const KvCounters counters = pager_.counters();
    ASSERT_EQ(counters.device_pages_free, counters.device_pages_total);
    ASSERT_EQ(counters.metadata_pages_free, counters.metadata_pages_total);
    ASSERT_EQ(counters.host_pages_free, counters.host_pages_total);
    ASSERT_EQ(counters.resident + counters.hot + counters.parked, 0);
    seen_.demoted += counters.demoted;
    seen_.promoted += counters.promoted;
    seen_.parked += counters.entered_parked;
    seen_.resumed += counters.resumed;
    seen_.streamed += counters.streamed_prefills;
  }

 private:
  struct Answer {
    SequenceId id;
    Admission admission = Admission::kLater;
  };
  using Direct = std::variant<KvDemand, SequenceId>;           // a question, or a release
  using ToStream = std::variant<model::StepPlan, SequenceId>;  // a plan, or a release in the manager's order

  std::int64_t pick(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  template <class T, std::size_t N>
  T one_of(const T (&values)[N]) {
    return values[pick(0, N - 1)];
  }

  KvPlannerConfig random_config() {
    const auto layers = static_cast<std::int32_t>(pick(1, 3));
    const KvGeometry rows{.layers = layers, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .dtype = KvDType::kF32};
    const MetadataGeometry metadata{.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 2};
    KvPlannerConfig config{.layout = KvLayout::uniform(rows, metadata)};
    if (layers == 3) {  // one layer without an indexer of its own
      config.layout.metadata_of_layer = {0, -1, 1};
      config.layout.metadata_layers = 2;
    }
    config.device_pages = static_cast<std::int32_t>(one_of({pick(1, 16), pick(8, 40)})) * layers;
    config.metadata_pages = static_cast<std::int32_t>(pick(10, 80)) * config.layout.metadata_layers;
    config.host_pages = static_cast<std::int32_t>(one_of({pick(4, 30), pick(40, 120)}));
    config.mode = one_of({KvModeChoice::kAuto, KvModeChoice::kAuto, KvModeChoice::kResident, KvModeChoice::kHot});
    if (calm_) {  // not all of eight fit, but any one does with the margin that promotion asks for
      config.device_pages = 26 * layers;
      config.metadata_pages = 200 * config.layout.metadata_layers;
      config.host_pages = 150;
      config.mode = KvModeChoice::kAuto;
    }
    return config;
  }

  SharedPolicy random_policy() {
    if (!calm_ && pick(0, 3) == 0) return nullptr;
    SequencePolicy policy;
    policy.selection = {.algorithm = sparse::make_streaming(16, one_of({16, 64})).value(),
                        .threshold = one_of({0, 1, 63, 64, 65, 128, 200})};
    policy.hot_shape = sparse::make_hot_buffer_shape(policy.selection.budget_blocks(), 16, one_of({64, 128})).value();
    policy.keeps_metadata = pick(0, 1) == 0;
    return std::make_shared<const SequencePolicy>(policy);
  }

  void submit() {
    SequenceRequest request;
    request.id = SequenceId{++last_id_};
    request.policy = random_policy();
    const std::int64_t threshold = request.policy != nullptr ? request.policy->selection.threshold : 64;
    const std::int64_t near = std::max<std::int64_t>(1, threshold + pick(-2, 2));
    request.prompt.assign(static_cast<std::size_t>(one_of({pick(1, 20), pick(1, 500), near, pick(62, 66)})), 7);
    request.max_new_tokens = one_of({std::int64_t{0}, pick(1, 10), pick(1, 300), pick(200, 800)});
    if (calm_) {
      request.prompt.resize(static_cast<std::size_t>(pick(1, 200)), 7);
      request.max_new_tokens = one_of({150, 500, 800});
    }
    request.stop_token_ids = {1};
    if (!needs_.can_ever_run(demand_of(request)).ok()) {
      ++seen_.never;
      return;
    }
    stream_.add(request.id, request.policy, static_cast<std::int64_t>(request.prompt.size()));
    const SequenceId id = request.id;
    std::vector<SequenceRequest> all;
    all.push_back(std::move(request));
    if (scheduler_.submit(std::move(all), 0).ok()) alive_.push_back(id);
  }

  void cancel() {
    if (alive_.empty() || pick(0, 59) != 0) return;
    const std::size_t place = static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(alive_.size()) - 1));
    scheduler_.cancel(alive_[place]);
    alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(place));
    ++seen_.cancelled;
    give_back();
  }

  void give_back() {
    for (const SequenceId id : scheduler_.take_released()) direct_.emplace_back(id);
  }

  void move(int kind) {
    switch (kind) {
      case 0:
        if (const auto demand = scheduler_.next_admission()) direct_.emplace_back(*demand);
        break;
      case 1:
        if (auto draft = scheduler_.plan_step()) drafts_.push_back(std::move(*draft));
        break;
      case 2:
        if (!direct_.empty()) manage_question();
        break;
      case 3:
        if (!drafts_.empty()) manage_draft();
        break;
      case 4: run_stream(); break;
      default: hear();
    }
  }

  void manage_question() {
    const Direct message = std::move(direct_.front());
    direct_.pop_front();
    if (const SequenceId* released = std::get_if<SequenceId>(&message)) {
      pager_.release(*released);
      plans_.emplace_back(*released);
      return;
    }
    const KvDemand& demand = std::get<KvDemand>(message);
    const Result<Admission> answer = pager_.acquire(demand);
    ASSERT_TRUE(answer.ok());
    ++(answer.value() == Admission::kGranted ? seen_.granted : seen_.later);
    answers_.push_back({.id = demand.id, .admission = answer.value()});
  }

  void manage_draft() {
    const StepDraft draft = std::move(drafts_.front());
    drafts_.pop_front();
    const StepSelection selection = SelectionPlanner().plan(draft);
    const PagedStep step = pager_.plan(draft);
    for (const auto& ops : step.pages.ops) seen_.stale += ops ? 0 : 1;
    plans_.emplace_back(assemble_step(draft, selection, step.pages));
  }

  void run_stream() {
    while (!plans_.empty()) {
      const ToStream message = std::move(plans_.front());
      plans_.pop_front();
      if (const SequenceId* released = std::get_if<SequenceId>(&message)) {
        stream_.forget(*released);
        continue;
      }
      results_.push_back(stream_.run(std::get<model::StepPlan>(message)));
      return;
    }
  }

  void hear() {
    if (!answers_.empty()) {
      const Answer answer = answers_.front();
      answers_.pop_front();
      if (answer.admission == Admission::kGranted) {
        scheduler_.admitted(answer.id, 0);
      } else {
        scheduler_.postponed(answer.id);
      }
    }
    if (!results_.empty()) {
      for (const SequenceEvent& event : scheduler_.step_done(results_.front())) {
        if (event.end == SequenceEnd::kNone) continue;
        if (event.end == SequenceEnd::kFailed) {
          EXPECT_EQ(event.error.message, "not a number");
        }
        std::erase(alive_, event.id);
        ++seen_.ended;
      }
      results_.pop_front();
    }
    give_back();
  }

  [[nodiscard]] bool idle() const {
    return scheduler_.queued() + scheduler_.running() + scheduler_.parked() == 0 && scheduler_.steps_under_way() == 0;
  }

  std::mt19937_64& random_;
  Seen& seen_;
  // Eight sequences at once, then no more: long ones are demoted, and promoted when others have ended.
  const bool calm_ = pick(0, 3) == 0;
  KvPlannerConfig config_;
  Scheduler scheduler_;
  KvNeeds needs_;
  StepPager pager_;
  SlowStream stream_;
  std::deque<Direct> direct_;
  std::deque<StepDraft> drafts_;
  std::deque<ToStream> plans_;
  std::deque<Answer> answers_;
  std::deque<model::StepResult> results_;
  std::vector<SequenceId> alive_;
  std::size_t most_alive_ = static_cast<std::size_t>(calm_ ? 8 : one_of({3, 100}));
  std::uint64_t last_id_ = 0;
};

TEST(KvCachePlannerProperty, EveryoneEndsAndNoPageHasTwoOwners) {
  std::mt19937_64 random(test_seed(20'260'102));
  Seen seen;
  for (int round = 0; round < 500 && !HasFailure(); ++round) {
    SCOPED_TRACE(concat("round ", round));
    Engine(random, seen).run(6000);
  }
  std::cout << "steps " << seen.steps << ", granted " << seen.granted << ", later " << seen.later << ", never "
            << seen.never << ", cancelled " << seen.cancelled << ", ended " << seen.ended << ", failed " << seen.failed
            << ", demoted " << seen.demoted << ", promoted " << seen.promoted << ", parked " << seen.parked
            << ", resumed " << seen.resumed << ", streamed " << seen.streamed << ", stale " << seen.stale << '\n';
  EXPECT_GT(seen.steps, 100'000);
  for (const std::int64_t count : {seen.granted, seen.later, seen.never, seen.cancelled, seen.ended, seen.demoted,
                                   seen.parked, seen.resumed, seen.streamed, seen.stale}) {
    EXPECT_GT(count, 100);
  }
  EXPECT_GT(seen.failed, 10);
  EXPECT_GT(seen.promoted, 10);
  for (const std::int64_t count : {seen.resident_rows, seen.hot_rows, seen.streamed_rows}) EXPECT_GT(count, 1000);
}

}  // namespace
}  // namespace hotset::actors
