// The actors together on CAF's deterministic test scheduler: every message is run by hand, no thread, no clock.
#include <gtest/gtest.h>

#include <caf/actor_system.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/send.hpp>
#include <string>
#include <vector>

#include "actors/actor_config.h"
#include "actors/supervisor.h"
#include "fakes.h"

namespace hotset::actors {
namespace {

using fakes::PendingExecutor;
using fakes::RecordingSink;
using fakes::ScriptedExecutor;

struct TestConfig : ActorConfig {
  TestConfig() { set("scheduler.policy", caf::atom("testing")); }
};

class ServingActorsTest : public testing::Test {
 protected:
  ServingActorsTest() : ServingActorsTest(std::make_shared<ScriptedExecutor>()) {}
  explicit ServingActorsTest(std::shared_ptr<ScriptedExecutor> executor) : executor_(std::move(executor)) {
    PromptEncoderParts text;
    text.tokenizer = fakes::byte_tokenizer();
    text.vocabulary = fakes::kVocabulary;
    text.render = [this](const ChatPrompt&) -> Result<std::string> {
      ++renders_;
      throw std::bad_alloc();
    };
    SupervisorParts parts;
    parts.serving.info.vocabulary = fakes::kVocabulary;
    parts.serving.clock = clock_;
    parts.serving.executor = executor_;
    parts.serving.encoder = std::make_shared<const PromptEncoder>(std::move(text));
    parts.serving.gateway = {.max_context = 1000, .max_sequences = 64, .eos_tokens = {fakes::kEos}};
    parts.serving.scheduler = {.max_batch = 2, .prefill_chunk = 16, .max_queue = 64};
    parts.serving.pools.layout =
        KvLayout::uniform({.layers = 1, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .dtype = KvDType::kF32});
    parts.serving.pools.device_pages = 6;
    parts.serving.pools.host_pages = 8;
    parts.open = open_;
    parts.health = health_;
    parts.gateway_metrics = std::make_shared<GatewayMetrics>(registry_);
    parts.engine_metrics = std::make_shared<EngineMetrics>(registry_);
    parts.own_threads = false;
    health_->set_ready();
    actors_ = spawn_process(system_, std::move(parts));
    run();
  }
  ~ServingActorsTest() override {
    caf::anon_send(actors_.supervisor, StopActors{});
    run();
  }

  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  }
  void run() { scheduler().run(); }
  void run_some(std::size_t messages) { scheduler().run(messages); }

  std::shared_ptr<RecordingSink> generate(const std::string& prompt, std::int64_t max_tokens, std::int32_t n = 1) {
    return generate(Prompt{TextPrompt{.text = prompt}}, max_tokens, n);
  }
  std::shared_ptr<RecordingSink> generate(Prompt prompt, std::int64_t max_tokens, std::int32_t n = 1) {
    GenerationRequest request;
    request.prompts.push_back(std::move(prompt));
    request.max_tokens = max_tokens;
    request.n = n;
    auto sink = std::make_shared<RecordingSink>();
    open_->add(++handle_, sink);
    caf::anon_send(actors_.prompt_reader,
                   Generate{.handle = handle_,
                            .request = std::make_shared<const GenerationRequest>(std::move(request)),
                            .arrived_ns = 0});
    return sink;
  }
  void cancel(RequestHandle handle) {
    open_->take(handle);
    caf::anon_send(actors_.gateway, CancelGeneration{.handle = handle});
  }
  double gauge(const char* name, const char* label, const char* value) {
    return registry_.gauge(name, "", {{label, value}}).value();
  }
  void expect_idle() {
    EXPECT_EQ(gauge("hotset_pool_pages_free", "tier", "device"), 6);
    EXPECT_EQ(gauge("hotset_pool_pages_free", "tier", "host"), 8);
    EXPECT_EQ(gauge("hotset_tier_pages", "tier", "host"), 0);
    EXPECT_EQ(gauge("hotset_sequences", "state", "queued"), 0);
    EXPECT_EQ(gauge("hotset_sequences", "state", "running"), 0);
  }
  // What the scripted executor says after a prompt of `prompt` tokens.
  static std::string answer(std::int64_t prompt, std::int64_t tokens) {
    std::string out;
    for (std::int64_t i = 0; i < tokens; ++i) out += static_cast<char>('a' + (prompt - 1 + i) % 26);
    return out;
  }

  MetricsRegistry registry_;
  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  std::shared_ptr<ScriptedExecutor> executor_;
  std::shared_ptr<OpenRequests> open_ = std::make_shared<OpenRequests>();
  std::shared_ptr<EngineHealth> health_ = std::make_shared<EngineHealth>(clock_, 1000);
  TestConfig config_;
  caf::actor_system system_{config_};
  ProcessActors actors_;
  RequestHandle handle_ = 0;
  int renders_ = 0;
};

TEST_F(ServingActorsTest, AnswersARequest) {
  const auto sink = generate(std::string(40, 'x'), 30);
  run();
  ASSERT_TRUE(sink->usage) << (sink->error ? sink->error->message : "no end");
  EXPECT_EQ(sink->choices.at(0).text, answer(40, 30));
  EXPECT_EQ(sink->usage->completion_tokens, 30);
  EXPECT_EQ(executor_->rows, 40 + 29);
  EXPECT_EQ(executor_->steps, 3 + 29);
  expect_idle();
}

// No memory for its chat template: its own failure.
TEST_F(ServingActorsTest, APromptThatCannotBeReadFailsAlone) {
  const auto chat = generate(ChatPrompt{}, 4);
  run();
  ASSERT_TRUE(chat->error);
  EXPECT_EQ(chat->error->code, ErrorCode::kOverloaded);
  EXPECT_EQ(health_->report(0).state, HealthState::kReady);
  const auto next = generate(std::string(5, 'x'), 3);
  run();
  ASSERT_TRUE(next->usage) << (next->error ? next->error->message : "no end");
  expect_idle();
}

TEST_F(ServingActorsTest, APromptWhoseClientHasGoneBeforeItsTurnIsNotRead) {
  const auto chat = generate(ChatPrompt{}, 4);
  cancel(handle_);
  run();
  EXPECT_EQ(renders_, 0);
  EXPECT_FALSE(chat->error);
  EXPECT_EQ(chat.use_count(), 1) << "a sink was kept";
  expect_idle();
  generate(ChatPrompt{}, 4);
  run();
  EXPECT_EQ(renders_, 1);
}

class PendingStepsTest : public ServingActorsTest {
 protected:
  PendingStepsTest() : ServingActorsTest(std::make_shared<PendingExecutor>()) {}
  PendingExecutor& executor() { return dynamic_cast<PendingExecutor&>(*executor_); }
};

TEST_F(PendingStepsTest, AStepIsBegunWhileTheOneBeforeRuns) {
  const auto first = generate(std::string(40, 'x'), 30);
  const auto second = generate(std::string(17, 'y'), 12);
  run();
  ASSERT_TRUE(first->usage) << (first->error ? first->error->message : "no end");
  ASSERT_TRUE(second->usage);
  EXPECT_EQ(first->choices.at(0).text, answer(40, 30));
  EXPECT_EQ(second->choices.at(0).text, answer(17, 12));
  EXPECT_EQ(executor().most_begun, 2);
  EXPECT_EQ(executor().begun, 0);
  expect_idle();
}

TEST_F(PendingStepsTest, ADeviceThatBreaksDuringAStepFailsTheRequests) {
  executor().break_at = 5;
  const auto first = generate(std::string(40, 'x'), 30);
  const auto second = generate(std::string(17, 'y'), 12);
  run();
  ASSERT_TRUE(first->error);
  ASSERT_TRUE(second->error);
  EXPECT_EQ(first->error->code, ErrorCode::kInternal);
  EXPECT_EQ(health_->report(0).state, HealthState::kUnhealthy);
}

TEST_F(ServingActorsTest, AnswersMoreThanFitAtOnceInTurn) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 12; ++i)
    sinks.push_back(generate(std::string(static_cast<std::size_t>(20 + 10 * i), 'x'), 70, 2));
  run();
  for (int i = 0; i < 12; ++i) {
    const auto& sink = *sinks[static_cast<std::size_t>(i)];
    ASSERT_TRUE(sink.usage);
    for (const ChoiceDelta& choice : sink.choices) EXPECT_EQ(choice.text, answer(20 + 10 * i, 70));
  }
  expect_idle();
}

TEST_F(ServingActorsTest, WhatCanNeverFitIsRefusedAtOnceByTheOption) {
  const auto sink = generate(std::string(200, 'x'), 500);
  run();
  ASSERT_TRUE(sink->error);
  EXPECT_EQ(sink->error->code, ErrorCode::kCapacityNever);
  EXPECT_FALSE(sink->started);
  expect_idle();
}

TEST_F(ServingActorsTest, AReadThatHangsMakesTheEngineUnhealthyThoughItsClientHasGone) {
  auto pending = health_->begin_work(0);
  caf::anon_send(actors_.prompt_reader,
                 Generate{.handle = 99, .request = std::make_shared<const GenerationRequest>(), .pending = pending});
  pending.reset();
  clock_->advance_ns(1001);
  EXPECT_EQ(health_->report(0).state, HealthState::kUnhealthy);
  run();  // nobody waits for number 99: it is dropped
  EXPECT_EQ(health_->report(0).state, HealthState::kReady);
  expect_idle();
}

TEST_F(ServingActorsTest, CancelAtEveryMomentGivesAllPagesBack) {
  for (std::size_t moment = 0; moment < 60; ++moment) {
    const auto running = generate(std::string(100, 'x'), 50);
    const auto waiting = generate(std::string(150, 'y'), 100);
    const auto other = generate("zz", 3);
    run_some(moment);
    cancel(handle_ - 2);
    cancel(handle_ - 1);
    run();
    EXPECT_FALSE(running->error) << moment;
    ASSERT_TRUE(other->usage) << moment;
    EXPECT_EQ(other->choices.at(0).text, answer(2, 3));
    expect_idle();
    EXPECT_EQ(open_->size(), 0U);
    EXPECT_EQ(running.use_count() + waiting.use_count(), 2) << "a sink was kept";
  }
}

TEST_F(ServingActorsTest, StopStringEndsOneChoiceEarly) {
  GenerationRequest request;
  request.prompts.push_back(TextPrompt{.text = "q"});
  request.max_tokens = 60;
  request.stop = {"def"};
  const auto sink = std::make_shared<RecordingSink>();
  open_->add(++handle_, sink);
  caf::anon_send(
      actors_.prompt_reader,
      Generate{.handle = handle_, .request = std::make_shared<const GenerationRequest>(request), .arrived_ns = 0});
  run();
  ASSERT_TRUE(sink->usage);
  EXPECT_EQ(sink->choices[0].text, "abc");
  EXPECT_EQ(sink->choices[0].finish, FinishReason::kStop);
  EXPECT_LT(executor_->steps, 12);
  expect_idle();
}

TEST_F(ServingActorsTest, AFailedSequenceFailsItsRequestOnly) {
  executor_->fail_next = true;
  const auto bad = generate("a", 5);
  run();
  const auto good = generate("b", 5);
  run();
  ASSERT_TRUE(bad->error);
  EXPECT_EQ(bad->error->message, "not a number");
  EXPECT_TRUE(good->usage);
  EXPECT_TRUE(health_->accepts());
  expect_idle();
}

TEST_F(ServingActorsTest, AFailedVerificationDegradesHealthButAnswersGoOn) {
  executor_->verified = {
      .checked = 7, .failed = 1, .failures = {{.sequence = SequenceId{1}, .layer = LayerId{3}, .block = 42}}};
  const auto sink = generate("a", 5);
  run();
  EXPECT_TRUE(sink->usage);
  const HealthReport report = health_->report(0);
  EXPECT_EQ(report.state, HealthState::kDegraded);
  EXPECT_NE(report.reason.find("layer 3, block 42"), std::string::npos) << report.reason;
  EXPECT_TRUE(health_->accepts());
  const std::string metrics = registry_.text();
  EXPECT_NE(metrics.find("hotset_verify_checked_total 7"), std::string::npos);
  EXPECT_NE(metrics.find("hotset_verify_failed_total 1"), std::string::npos);
  expect_idle();
}

TEST_F(ServingActorsTest, AnExceptionInTheStreamFailsEverythingAndHealth) {
  executor_->throw_at = 5;
  const auto first = generate(std::string(30, 'x'), 20);
  const auto second = generate("b", 40);
  run();
  ASSERT_TRUE(first->error && second->error);
  EXPECT_EQ(first->error->code, ErrorCode::kInternal);
  EXPECT_EQ(executor_->steps, 5);
  EXPECT_EQ(health_->report(0).state, HealthState::kUnhealthy);
  const auto late = generate("c", 4);
  run();
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->code, ErrorCode::kUnavailable);
  expect_idle();
}

class DeathTest : public ServingActorsTest, public testing::WithParamInterface<int> {
 protected:
  void kill_actor() {
    const auto end = [](const auto& handle) { caf::anon_send_exit(handle, caf::exit_reason::kill); };
    switch (GetParam()) {
      case 0: return end(actors_.gateway);
      case 1: return end(actors_.coordinator);
      case 2: return end(actors_.algorithm);
      case 3: return end(actors_.manager);
      case 4: return end(actors_.adaptor);
      case 5: return end(actors_.stream);
      case 6: return end(actors_.prompt_reader);
      case 7: return end(actors_.text_reader);
      default: return end(actors_.host_tier);
    }
  }
};

TEST_P(DeathTest, EndsEveryOpenRequestAndHealth) {
  const auto running = generate(std::string(60, 'x'), 50);
  const auto waiting = generate(std::string(100, 'y'), 200);
  run_some(25);
  ASSERT_FALSE(running->ended());
  kill_actor();
  run();
  ASSERT_TRUE(running->error);
  ASSERT_TRUE(waiting->error);
  EXPECT_EQ(open_->size(), 0U);
  EXPECT_EQ(health_->report(0).state, HealthState::kUnhealthy);
}

INSTANTIATE_TEST_SUITE_P(EachActor, DeathTest, testing::Range(0, 9));

}  // namespace
}  // namespace hotset::actors
