// The small plain classes of the engine: SelectionPlanner, StepPager, assemble_step, HostTierCore, StreamCore,
// EngineHealth, OpenRequests.
#include <gtest/gtest.h>

#include "actors/engine_health.h"
#include "actors/host_tier_core.h"
#include "actors/open_requests.h"
#include "actors/selection_menu.h"
#include "actors/selection_planner.h"
#include "actors/step_assembler.h"
#include "actors/step_pager.h"
#include "actors/stream_core.h"
#include "fakes.h"

namespace hotset::actors {
namespace {

DraftRows rows_of(std::uint64_t id, std::int64_t first, std::int32_t count, bool prefill) {
  DraftRows out;
  out.id = SequenceId{id};
  out.state = std::make_shared<model::SequenceState>();
  out.state->kv.id = out.id;
  out.first_position = first;
  out.rows = count;
  out.prefill = prefill;
  if (prefill) out.tokens.assign(static_cast<std::size_t>(count), 1);
  return out;
}

SharedPolicy streaming_past(std::int64_t threshold) {
  SequencePolicy policy;
  policy.selection = {.algorithm = sparse::make_streaming(16, 64).value(), .threshold = threshold};
  policy.hot_shape = sparse::make_hot_buffer_shape(policy.selection.algorithm->max_blocks(), 16, 128).value();
  return std::make_shared<const SequencePolicy>(policy);
}

TEST(SelectionPlanner, LengthKindOfRowAndOwnPolicyDecide) {
  const SelectionPlanner planner;
  StepDraft draft;
  draft.rows = {rows_of(1, 99, 1, false), rows_of(2, 100, 1, false), rows_of(3, 500, 8, true),
                rows_of(4, 100, 1, false), rows_of(5, 100, 1, false)};
  for (std::size_t i = 0; i < 3; ++i) draft.rows[i].policy = streaming_past(100);
  draft.rows[4].policy = streaming_past(101);
  const StepSelection selection = planner.plan(draft);
  ASSERT_EQ(selection.rows.size(), 5U);
  EXPECT_EQ(selection.rows[0].algorithm, nullptr);                                    // length 100
  EXPECT_EQ(selection.rows[1].algorithm, draft.rows[1].policy->selection.algorithm);  // length 101
  EXPECT_EQ(selection.rows[1].budget, draft.rows[1].policy->selection.algorithm->max_blocks());
  EXPECT_EQ(selection.rows[1].dense_until, 100);
  EXPECT_EQ(selection.rows[2].algorithm, nullptr);  // prompt rows attend to everything
  EXPECT_EQ(selection.rows[3].algorithm, nullptr);  // dense
  EXPECT_EQ(selection.rows[4].algorithm, nullptr);  // another threshold
}

TEST(SelectionPlanner, HitRateOverSteps) {
  SelectionPlanner planner;
  EXPECT_EQ(planner.totals().hit_rate(), 1.0);
  model::StepStats stats;
  stats.hits = 5;
  stats.ring_hits = 1;
  stats.misses = 2;
  planner.learn(stats);
  EXPECT_EQ(planner.totals().hit_rate(), 0.75);
}

TEST(SelectionMenu, OffersWhatTheServerHasWithinItsBudget) {
  const SelectionMenu dense;
  EXPECT_EQ(dense.resolve({}, {}).value(), nullptr);
  EXPECT_EQ(dense.resolve("dense", {}).value(), nullptr);
  EXPECT_EQ(dense.resolve("streaming", {}).error().param, "hotset.algorithm");
  EXPECT_EQ(dense.resolve({}, 100).error().param, "hotset.budget");
  const SharedPolicy server = streaming_past(7);
  const SelectionMenu menu(server);
  EXPECT_EQ(menu.resolve({}, {}).value(), server);
  EXPECT_EQ(menu.resolve("auto", {}).value(), server);
  EXPECT_EQ(menu.resolve("streaming", {}).value(), server);
  EXPECT_EQ(menu.resolve("dense", {}).value(), nullptr);
  const Error unknown = menu.resolve("other", {}).error();
  EXPECT_NE(unknown.message.find("auto, dense, streaming"), std::string::npos) << unknown.message;
  // StreamingLLM takes all its blocks always, so its budget is no choice.
  const std::int64_t tokens = server->selection.budget_blocks() * 16;
  EXPECT_EQ(menu.resolve({}, tokens).value()->selection.budget_blocks(), tokens / 16);
  EXPECT_EQ(menu.resolve({}, tokens + 16).error().param, "hotset.budget");
  EXPECT_EQ(menu.resolve({}, tokens - 16).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(menu.resolve("dense", 64).error().param, "hotset.budget");
  EXPECT_FALSE(menu.resolve({}, -5).ok());
}

KvPlannerConfig pools() {
  KvPlannerConfig config;
  config.layout = KvLayout::uniform({.layers = 2, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .dtype = KvDType::kF32});
  config.device_pages = 12;
  config.host_pages = 8;
  return config;
}

TEST(StepPager, DropsRowsOfReleasedSequencesAndKeepsTheBooks) {
  StepPager pager(pools());
  for (const std::uint64_t id : {1, 2}) {
    const auto granted =
        pager.acquire({.id = SequenceId{id}, .prompt_tokens = 70, .max_new_tokens = 4, .hot_shape = {}});
    ASSERT_TRUE(granted.ok());
    ASSERT_EQ(granted.value(), Admission::kGranted);
  }
  StepDraft draft;
  draft.step = 1;
  draft.rows = {rows_of(1, 0, 70, true), rows_of(2, 0, 60, true)};
  PagedStep step = pager.plan(draft);
  ASSERT_EQ(step.completed.size(), 1U);
  EXPECT_EQ(step.completed[0].identity, private_page(SequenceId{1}, 0));
  EXPECT_EQ(pager.release(SequenceId{1}), std::vector<PageIdentity>{private_page(SequenceId{1}, 0)});
  EXPECT_TRUE(pager.release(SequenceId{1}).empty());
  draft.step = 2;
  draft.rows = {rows_of(1, 70, 1, false), rows_of(2, 60, 10, true)};
  step = pager.plan(draft);
  EXPECT_FALSE(step.pages.ops[0].has_value());
  ASSERT_TRUE(step.pages.ops[1].has_value());
  const model::StepPlan plan = assemble_step(draft, StepSelection{.rows = {{}, {}}}, step.pages);
  ASSERT_EQ(plan.sequences.size(), 1U);
  EXPECT_EQ(plan.step, 2U);
  EXPECT_EQ(plan.sequences[0].state, draft.rows[1].state);
  EXPECT_EQ(plan.sequences[0].first_position, 60);
  pager.release(SequenceId{2});
  EXPECT_EQ(pager.counters().device_pages_free, 12);
  EXPECT_EQ(pager.counters().host_pages_free, 8);
}

TEST(StepAssembler, DecodeRowsComeFirst) {
  StepDraft draft;
  draft.rows = {rows_of(1, 0, 4, true), rows_of(2, 9, 1, false)};
  StepPages pages;
  pages.ops.resize(2);
  pages.ops[0].emplace();
  pages.ops[1].emplace();
  const model::StepPlan plan = assemble_step(draft, StepSelection{.rows = {{}, {}}}, pages);
  ASSERT_EQ(plan.sequences.size(), 2U);
  EXPECT_FALSE(plan.sequences[0].prefill);
  EXPECT_EQ(plan.sequences[0].state->kv.id, SequenceId{2});
}

TEST(HostTierCore, PagesByIdentity) {
  HostTierCore tier(2);
  const auto identity = [](std::int64_t number) { return private_page(SequenceId{7}, number); };
  EXPECT_EQ(tier.put({{identity(0), HostPage{4}}, {identity(1), HostPage{5}}, {identity(2), HostPage{6}}}), 2);
  EXPECT_EQ(tier.refused(), 1);
  EXPECT_EQ(tier.put({{identity(0), HostPage{9}}}), 0);
  const auto found = tier.get({identity(0), identity(1), identity(2)});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].page, HostPage{4});
  EXPECT_EQ(tier.get({identity(3), identity(0)}).size(), 0U);  // a chain ends at its first gap
  EXPECT_EQ(tier.hits(), 2);
  EXPECT_EQ(tier.misses(), 3);
  EXPECT_EQ(tier.erase({identity(0), identity(8)}), 1);
  EXPECT_FALSE(tier.contains(identity(0)));
  EXPECT_EQ(tier.pages(), 1);
  EXPECT_TRUE(tier.healthy());
}

model::StepResult run(StreamCore& stream, const model::StepPlan& plan) {
  EXPECT_EQ(stream.begin(plan).value(), nullptr);
  return stream.finish().value();
}

TEST(StreamCore, IdleTimeCountsOnlyWhileASequenceWasRunning) {
  auto clock = std::make_shared<ManualClock>();
  StreamCore stream(std::make_shared<fakes::ScriptedExecutor>(), clock);
  model::StepPlan plan;
  plan.sequences.resize(1);
  plan.sequences[0].state = std::make_shared<model::SequenceState>();
  plan.sequences[0].rows = 1;
  clock->advance_ns(50);
  EXPECT_EQ(run(stream, plan).stats.idle_ns, 0);
  clock->advance_ns(7);
  plan.sequences[0].first_position = 1;
  EXPECT_EQ(run(stream, plan).stats.idle_ns, 7);
  clock->advance_ns(1000);
  plan.sequences[0].state = std::make_shared<model::SequenceState>();
  plan.sequences[0].first_position = 0;  // a new sequence: nobody waited
  EXPECT_EQ(run(stream, plan).stats.idle_ns, 0);
}

TEST(StreamCore, AThrowingExecutorBreaksTheStream) {
  auto executor = std::make_shared<fakes::ScriptedExecutor>();
  executor->throw_at = 1;
  StreamCore stream(executor, std::make_shared<ManualClock>());
  EXPECT_FALSE(stream.begin({}).ok());
  EXPECT_TRUE(stream.broken());
}

TEST(StreamCore, AStepThatIsBegunInAdvanceWaitedForNothing) {
  auto clock = std::make_shared<ManualClock>();
  StreamCore stream(std::make_shared<fakes::PendingExecutor>(), clock);
  model::StepPlan plan{.step = 1};
  plan.sequences.resize(1);
  plan.sequences[0].state = std::make_shared<model::SequenceState>();
  plan.sequences[0].rows = 1;
  EXPECT_NE(stream.begin(plan).value(), nullptr);
  plan.step = 2;
  plan.sequences[0].first_position = 1;
  plan.deferred = {SequenceId{7}};
  EXPECT_NE(stream.begin(plan).value(), nullptr);
  clock->advance_ns(5);
  const model::StepResult first = stream.finish().value();
  EXPECT_EQ(first.step, 1U);
  EXPECT_TRUE(first.deferred.empty());
  clock->advance_ns(5);
  const model::StepResult second = stream.finish().value();
  EXPECT_EQ(second.step, 2U);
  EXPECT_EQ(second.deferred, plan.deferred);
  EXPECT_EQ(second.stats.idle_ns, 0);
  plan.step = 3;
  plan.sequences[0].first_position = 2;
  clock->advance_ns(9);
  EXPECT_NE(stream.begin(plan).value(), nullptr);
  EXPECT_EQ(stream.finish().value().stats.idle_ns, 9);
}

TEST(EngineHealth, StallsRecoverFailuresDoNot) {
  auto clock = std::make_shared<ManualClock>();
  const auto shared = std::make_shared<EngineHealth>(clock, 100);
  EngineHealth& health = *shared;
  EXPECT_EQ(health.report(0).state, HealthState::kLoading);
  health.set_ready();
  clock->advance_ns(500);
  EXPECT_EQ(health.report(0).state, HealthState::kReady);  // idle is healthy
  auto first = health.begin_work(0);
  clock->advance_ns(100);
  EXPECT_EQ(health.report(1).state, HealthState::kReady);
  clock->advance_ns(1);
  auto second = health.begin_work(1);  // more work is no progress
  EXPECT_EQ(health.report(2).state, HealthState::kUnhealthy);
  EXPECT_EQ(health.report(0).state, HealthState::kUnhealthy) << "whoever asked may have gone";
  EXPECT_TRUE(health.accepts());
  first.reset();
  EXPECT_EQ(health.report(2).state, HealthState::kReady);
  clock->advance_ns(200);
  EXPECT_EQ(health.report(0).state, HealthState::kUnhealthy) << "the second one hangs";
  second.reset();
  clock->advance_ns(200);
  EXPECT_EQ(health.report(0).state, HealthState::kReady);
  EXPECT_EQ(health.report(1).state, HealthState::kUnhealthy) << "open, but nobody works on it";
  health.fail("first");
  health.fail("second");
  health.set_draining();
  EXPECT_EQ(health.report(0).state, HealthState::kUnhealthy);
  EXPECT_EQ(health.report(0).reason, "first");
  EXPECT_FALSE(health.accepts());
}

TEST(OpenRequests, WhoTakesASinkEndsItsRequest) {
  OpenRequests open;
  const auto sink = std::make_shared<fakes::RecordingSink>();
  open.add(1, sink);
  open.add(2, sink);
  EXPECT_NE(open.find(1), nullptr);
  EXPECT_NE(open.take(1), nullptr);
  EXPECT_EQ(open.take(1), nullptr);
  EXPECT_FALSE(open.wait_until_empty(std::chrono::steady_clock::now()));
  EXPECT_EQ(open.take_all().size(), 1U);
  EXPECT_TRUE(open.wait_until_empty(std::chrono::steady_clock::now()));
}

}  // namespace
}  // namespace hotset::actors
