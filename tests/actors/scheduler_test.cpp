#include "actors/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

namespace hotset::actors {
namespace {

SequenceRequest request(std::uint64_t id, std::int64_t prompt, std::int64_t output) {
  SequenceRequest out;
  out.id = SequenceId{id};
  for (std::int64_t i = 0; i < prompt; ++i) out.prompt.push_back(static_cast<std::int32_t>(10 + i));
  out.max_new_tokens = output;
  out.stop_token_ids = {1};
  return out;
}

void start(Scheduler& scheduler, SequenceRequest one) {
  std::vector<SequenceRequest> all;
  all.push_back(std::move(one));
  ASSERT_TRUE(scheduler.submit(std::move(all), 0).ok());
}

void admit_all(Scheduler& scheduler) {
  while (const auto demand = scheduler.next_admission()) ASSERT_TRUE(scheduler.admitted(demand->id, 5).has_value());
}

// Every sampling row yields `token`.
model::StepResult results_of(const StepDraft& draft, std::int32_t token) {
  model::StepResult out;
  out.step = draft.step;
  for (const DraftRows& rows : draft.rows) {
    model::SequenceResult one;
    one.id = rows.id;
    one.sampled = rows.sample;
    one.token.token = token;
    out.sequences.push_back(one);
  }
  return out;
}

TEST(Scheduler, ChunksEndAtMultiplesOfTheChunkWhateverTheNeighbours) {
  Scheduler scheduler({.max_batch = 4, .prefill_chunk = 8, .max_queue = 10});
  start(scheduler, request(1, 19, 2));
  start(scheduler, request(2, 5, 2));
  admit_all(scheduler);
  const auto first = scheduler.plan_step();
  ASSERT_TRUE(first);
  ASSERT_EQ(first->rows.size(), 1U);  // the second prompt doesn't fit beside a whole chunk
  EXPECT_EQ(first->rows[0].rows, 8);
  EXPECT_EQ(first->rows[0].next_token, 18);
  EXPECT_FALSE(first->rows[0].sample);
  const auto second = scheduler.plan_step();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->rows[0].first_position, 8);
  EXPECT_FALSE(scheduler.plan_step());  // two are under way
  EXPECT_TRUE(scheduler.step_done(results_of(*first, 50)).empty());
  const auto third = scheduler.plan_step();
  ASSERT_TRUE(third);
  ASSERT_EQ(third->rows.size(), 2U);
  EXPECT_EQ(third->rows[0].rows, 3);
  EXPECT_TRUE(third->rows[0].sample);
  EXPECT_EQ(third->rows[0].next_token, -1);
  EXPECT_EQ(third->rows[1].id, SequenceId{2});
  EXPECT_EQ(third->rows[1].rows, 5);
}

TEST(Scheduler, StopTokenIsKnownOneStepLateAndTheOvershootIsDropped) {
  Scheduler scheduler({.max_batch = 1, .prefill_chunk = 8, .max_queue = 10});
  start(scheduler, request(1, 3, 10));
  admit_all(scheduler);
  const auto prefill = scheduler.plan_step();
  const auto decode = scheduler.plan_step();
  ASSERT_TRUE(prefill && decode);
  EXPECT_TRUE(decode->rows[0].tokens.empty());
  const auto events = scheduler.step_done(results_of(*prefill, 1));
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].end, SequenceEnd::kStopToken);
  EXPECT_EQ(scheduler.take_released(), std::vector<SequenceId>{SequenceId{1}});
  EXPECT_TRUE(scheduler.step_done(results_of(*decode, 50)).empty());
  EXPECT_FALSE(scheduler.plan_step());
}

TEST(Scheduler, NoRowFollowsTheLastToken) {
  Scheduler scheduler({.max_batch = 1, .prefill_chunk = 8, .max_queue = 10});
  start(scheduler, request(1, 3, 2));
  admit_all(scheduler);
  const auto prefill = scheduler.plan_step();
  const auto decode = scheduler.plan_step();
  EXPECT_EQ(scheduler.step_done(results_of(*prefill, 50)).at(0).end, SequenceEnd::kNone);
  EXPECT_FALSE(scheduler.plan_step());
  EXPECT_EQ(scheduler.step_done(results_of(*decode, 51)).at(0).end, SequenceEnd::kMaxTokens);
}

TEST(Scheduler, ScoringEndsWithThePrompt) {
  Scheduler scheduler({.max_batch = 1, .prefill_chunk = 4, .max_queue = 10});
  SequenceRequest scored = request(1, 6, 0);
  scored.prompt_logprobs = 0;
  start(scheduler, std::move(scored));
  admit_all(scheduler);
  const auto first = scheduler.plan_step();
  const auto second = scheduler.plan_step();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(second->rows[0].sample);
  EXPECT_TRUE(scheduler.step_done(results_of(*first, 0)).empty());
  EXPECT_EQ(scheduler.step_done(results_of(*second, 0)).at(0).end, SequenceEnd::kMaxTokens);
}

TEST(Scheduler, TheHeadOfTheQueueBlocksAndAsksAgainAfterARelease) {
  Scheduler scheduler({.max_batch = 4, .prefill_chunk = 8, .max_queue = 2});
  start(scheduler, request(1, 3, 2));
  start(scheduler, request(2, 3, 2));
  std::vector<SequenceRequest> third;
  third.push_back(request(3, 3, 2));
  EXPECT_EQ(scheduler.submit(std::move(third), 0).error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(scheduler.next_admission()->id, SequenceId{1});
  EXPECT_FALSE(scheduler.next_admission());  // an answer is outstanding
  EXPECT_EQ(scheduler.admitted(SequenceId{1}, 7), 7);
  EXPECT_EQ(scheduler.next_admission()->id, SequenceId{2});
  scheduler.postponed(SequenceId{2});
  EXPECT_FALSE(scheduler.next_admission());
  scheduler.cancel(SequenceId{1});
  EXPECT_EQ(scheduler.take_released().size(), 1U);
  EXPECT_EQ(scheduler.next_admission()->id, SequenceId{2});
}

TEST(Scheduler, CancelWhileTheManagerIsAskedGivesThePagesBack) {
  Scheduler scheduler({.max_batch = 4, .prefill_chunk = 8, .max_queue = 4});
  start(scheduler, request(1, 3, 2));
  ASSERT_TRUE(scheduler.next_admission());
  scheduler.cancel(SequenceId{1});
  EXPECT_EQ(scheduler.take_released(), std::vector<SequenceId>{SequenceId{1}});
  EXPECT_FALSE(scheduler.admitted(SequenceId{1}, 1).has_value());
  EXPECT_EQ(scheduler.queued() + scheduler.running(), 0);
}

TEST(Scheduler, OneSequenceFailsAloneAndABrokenDeviceFailsAll) {
  Scheduler scheduler({.max_batch = 4, .prefill_chunk = 8, .max_queue = 4});
  for (std::uint64_t id = 1; id <= 3; ++id) start(scheduler, request(id, 2, 5));
  admit_all(scheduler);
  const auto draft = scheduler.plan_step();
  model::StepResult result = results_of(*draft, 50);
  result.sequences[1].sampled = false;
  result.sequences[1].error = "not a number";
  const auto events = scheduler.step_done(result);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].end, SequenceEnd::kFailed);
  EXPECT_EQ(events[0].end, SequenceEnd::kNone);
  EXPECT_EQ(scheduler.running(), 2);
  EXPECT_EQ(scheduler.fail_all({ErrorCode::kInternal, "broken", {}}).size(), 2U);
  EXPECT_EQ(scheduler.take_released().size(), 3U);
  EXPECT_FALSE(scheduler.plan_step());
  std::vector<SequenceRequest> late;
  late.push_back(request(9, 1, 1));
  EXPECT_EQ(scheduler.submit(std::move(late), 0).error().code, ErrorCode::kUnavailable);
}

TEST(Scheduler, AParkedSequenceGoesBackToItsLastRowAndComesBackFirst) {
  Scheduler scheduler({.max_batch = 4, .prefill_chunk = 8, .max_queue = 4});
  start(scheduler, request(1, 3, 9));
  start(scheduler, request(2, 12, 9));
  admit_all(scheduler);
  start(scheduler, request(3, 3, 9));
  const auto first = scheduler.plan_step();
  const auto second = scheduler.plan_step();  // sequence 1 decodes, and the prompt of 2 begins
  ASSERT_TRUE(first && second);
  scheduler.step_done(results_of(*first, 50));
  const auto third = scheduler.plan_step();
  ASSERT_TRUE(third);
  model::StepResult parked = results_of(*second, 51);
  std::erase_if(parked.sequences, [](const auto& one) { return one.id == SequenceId{2}; });
  parked.deferred = {SequenceId{2}};
  EXPECT_EQ(scheduler.step_done(parked).size(), 1U);
  EXPECT_EQ(scheduler.parked(), 1);
  EXPECT_EQ(scheduler.running(), 1);
  const auto question = scheduler.next_admission();  // ahead of sequence 3
  ASSERT_TRUE(question);
  EXPECT_EQ(question->id, SequenceId{2});
  EXPECT_TRUE(question->resume);
  // The rows of the third step were dropped, which is no failure.
  model::StepResult stale = results_of(*third, 52);
  std::erase_if(stale.sequences, [](const auto& one) { return one.id == SequenceId{2}; });
  for (const SequenceEvent& event : scheduler.step_done(stale)) EXPECT_NE(event.end, SequenceEnd::kFailed);
  EXPECT_FALSE(scheduler.admitted(SequenceId{2}, 9).has_value());  // it waited no time in the queue
  EXPECT_EQ(scheduler.parked(), 0);
  const auto fourth = scheduler.plan_step();
  ASSERT_TRUE(fourth);
  ASSERT_EQ(fourth->rows.back().id, SequenceId{2});
  EXPECT_EQ(fourth->rows.back().first_position, 0);
  EXPECT_EQ(fourth->rows.back().turn, 1U);
  EXPECT_EQ(scheduler.next_admission()->id, SequenceId{3});
}

TEST(Scheduler, AParkedSequenceCanBeCancelledRefusedOrFail) {
  for (const int how : {0, 1, 2, 3}) {
    Scheduler scheduler({.max_batch = 4, .prefill_chunk = 8, .max_queue = 4});
    start(scheduler, request(1, 3, 9));
    start(scheduler, request(2, 3, 9));
    admit_all(scheduler);
    const auto draft = scheduler.plan_step();
    model::StepResult result = results_of(*draft, 50);
    result.sequences.pop_back();
    result.deferred = {SequenceId{2}};
    scheduler.step_done(result);
    ASSERT_EQ(scheduler.parked(), 1);
    if (how > 0) {
      ASSERT_TRUE(scheduler.next_admission());
    }
    if (how < 2) scheduler.cancel(SequenceId{2});
    if (how == 2) {
      EXPECT_EQ(scheduler.refused(SequenceId{2}, {ErrorCode::kUnavailable, "no answer", {}})->end,
                SequenceEnd::kFailed);
    }
    if (how == 3) {
      EXPECT_EQ(scheduler.fail_all({ErrorCode::kInternal, "broken", {}}).size(), 2U);
    } else {
      EXPECT_FALSE(scheduler.admitted(SequenceId{2}, 9).has_value());
    }
    EXPECT_EQ(scheduler.parked(), 0);
    const std::vector<SequenceId> released = scheduler.take_released();
    EXPECT_EQ(released.size(), how == 3 ? 2U : 1U);
    EXPECT_TRUE(std::ranges::find(released, SequenceId{2}) != released.end());
  }
}

// What must hold whatever comes, seen from outside.
class Watch {
 public:
  explicit Watch(const SchedulerConfig& config) : config_(config) {}

  void submitted(const SequenceRequest& one) {
    order_.push_back(one.id);
    sequences_[one.id] = {.prompt = static_cast<std::int64_t>(one.prompt.size()), .output = one.max_new_tokens};
  }
  void admitted(SequenceId id) {
    const auto place = std::find(order_.begin(), order_.end(), id);
    ASSERT_EQ(place, order_.begin()) << "first come, first served";
    order_.erase(place);
    held_.insert(id);
  }
  void cancelled(SequenceId id) {
    std::erase(order_, id);
    sequences_.at(id).over = true;
  }
  void released(SequenceId id) { held_.erase(id); }
  void planned(const StepDraft& draft) {
    std::int64_t prompt_rows = 0;
    std::set<SequenceId> seen;
    ASSERT_LE(draft.rows.size(), static_cast<std::size_t>(config_.max_batch));
    for (const DraftRows& rows : draft.rows) {
      Seen& sequence = sequences_.at(rows.id);
      ASSERT_TRUE(seen.insert(rows.id).second);
      ASSERT_TRUE(held_.contains(rows.id)) << "runs without pages";
      ASSERT_FALSE(sequence.over);
      ASSERT_EQ(rows.first_position, sequence.rows);
      sequence.rows += rows.rows;
      sequence.samples += rows.sample ? 1 : 0;
      ASSERT_LE(sequence.samples, sequence.output);
      if (rows.prefill) {
        prompt_rows += rows.rows;
        ASSERT_TRUE(sequence.rows == sequence.prompt || sequence.rows % config_.prefill_chunk == 0);
        ASSERT_LE(sequence.rows, sequence.prompt);
        ASSERT_EQ(rows.sample, sequence.rows == sequence.prompt && sequence.output > 0);
      } else {
        ASSERT_GE(sequence.samples, 2) << "decodes before its prompt has sampled";
        ASSERT_EQ(rows.rows, 1);
        ASSERT_LT(sequence.rows, sequence.prompt + sequence.output) << "a row after max_tokens";
      }
    }
    ASSERT_LE(prompt_rows, config_.prefill_chunk);
  }
  void event(const SequenceEvent& one) {
    Seen& sequence = sequences_.at(one.id);
    ASSERT_FALSE(sequence.over) << "an event after the end";
    sequence.tokens += static_cast<std::int64_t>(one.tokens.size());
    if (one.end == SequenceEnd::kNone) return;
    sequence.over = true;
    ++ends_;
    if (one.end == SequenceEnd::kMaxTokens) {
      ASSERT_EQ(sequence.tokens, sequence.output);
    }
  }
  void at_the_end() {
    for (const auto& [id, sequence] : sequences_) ASSERT_TRUE(sequence.over) << id.value() << " never ended";
    ASSERT_TRUE(held_.empty()) << "pages were kept";
    ASSERT_GT(ends_, 0);
  }

 private:
  struct Seen {
    std::int64_t prompt = 0, output = 0, rows = 0, samples = 0, tokens = 0;
    bool over = false;
  };
  SchedulerConfig config_;
  std::vector<SequenceId> order_;
  std::map<SequenceId, Seen> sequences_;
  std::set<SequenceId> held_;
  int ends_ = 0;
};

void random_run(unsigned seed) {
  std::mt19937 random(seed);
  const auto up_to = [&](int most) { return static_cast<std::int64_t>(random() % (static_cast<unsigned>(most) + 1)); };
  const SchedulerConfig config{.max_batch = 1 + up_to(4), .prefill_chunk = 1 + up_to(9), .max_queue = 8};
  Scheduler scheduler(config);
  Watch watch(config);
  std::vector<SequenceId> alive;
  std::deque<StepDraft> under_way;
  std::uint64_t next = 1;
  for (int action = 0; action < 600; ++action) {
    const bool draining = action > 300;
    const std::int64_t what = up_to(9);
    if (what <= 1 && !draining) {
      SequenceRequest one = request(next, 1 + up_to(25), up_to(6));
      std::vector<SequenceRequest> all{one};
      if (scheduler.submit(std::move(all), action).ok()) {
        watch.submitted(one);
        alive.push_back(SequenceId{next++});
      }
    } else if (what == 2 && !alive.empty() && up_to(3) == 0) {
      const std::size_t pick = random() % alive.size();
      scheduler.cancel(alive[pick]);
      watch.cancelled(alive[pick]);
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(pick));
    } else if (what <= 5) {
      if (const auto demand = scheduler.next_admission()) {
        if (up_to(2) == 0 && scheduler.running() > 0) {  // "later" is said only when pages can come back
          scheduler.postponed(demand->id);
        } else {
          watch.admitted(demand->id);
          ASSERT_TRUE(scheduler.admitted(demand->id, action));
        }
      }
    } else if (what <= 7) {
      if (auto draft = scheduler.plan_step()) {
        watch.planned(*draft);
        under_way.push_back(std::move(*draft));
        ASSERT_LE(under_way.size(), 2U);
      }
    } else if (!under_way.empty()) {
      const model::StepResult result = results_of(under_way.front(), up_to(9) == 0 ? 1 : 50);
      under_way.pop_front();
      for (const SequenceEvent& event : scheduler.step_done(result)) {
        watch.event(event);
        if (event.end != SequenceEnd::kNone) std::erase(alive, event.id);
      }
    }
    for (const SequenceId id : scheduler.take_released()) watch.released(id);
  }
  for (int round = 0; round < 2000 && (scheduler.queued() > 0 || scheduler.running() > 0); ++round) {
    while (const auto demand = scheduler.next_admission()) {
      watch.admitted(demand->id);
      scheduler.admitted(demand->id, 0);
    }
    if (auto draft = scheduler.plan_step()) {
      watch.planned(*draft);
      under_way.push_back(std::move(*draft));
    }
    if (!under_way.empty()) {
      for (const SequenceEvent& event : scheduler.step_done(results_of(under_way.front(), 50))) watch.event(event);
      under_way.pop_front();
    }
    for (const SequenceId id : scheduler.take_released()) watch.released(id);
  }
  watch.at_the_end();
}

TEST(Scheduler, InvariantsHoldUnderRandomLoad) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    random_run(seed);
    if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace hotset::actors
