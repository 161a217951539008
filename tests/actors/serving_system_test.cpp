// The whole control plane on its real threads, with a scripted executor and with a real checkpoint.
#include "actors/serving_system.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "actors/serving_parts.h"
#include "fakes.h"

namespace hotset::actors {
namespace {

using fakes::RecordingSink;

// Something that steps wait for.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  void arrive() {
    const std::lock_guard lock(mutex_);
    entered_ = true;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_until_entered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return entered_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool entered_ = false;
};

// Runs steps only while the gate is open.
class GatedExecutor final : public fakes::ScriptedExecutor {
 public:
  model::StepResult run(const model::StepPlan& plan) override {
    gate->arrive();
    gate->pass();
    return ScriptedExecutor::run(plan);
  }
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
};

// Begins steps, which end only while the gate is open.
class GatedPendingExecutor final : public fakes::PendingExecutor {
 public:
  std::shared_ptr<const model::PendingStep> begin(const model::StepPlan& plan) override {
    (void)fakes::PendingExecutor::begin(plan);
    gate->arrive();
    return std::make_shared<Step>(gate);
  }
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();

 private:
  class Step final : public model::PendingStep {
   public:
    explicit Step(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
    void wait() const override { gate_->pass(); }

   private:
    std::shared_ptr<Gate> gate_;
  };
};

ServingParts parts_with(std::shared_ptr<model::StepExecutor> executor) {
  PromptEncoderParts text;
  text.tokenizer = fakes::byte_tokenizer();
  text.vocabulary = fakes::kVocabulary;
  ServingParts parts;
  parts.info.vocabulary = fakes::kVocabulary;
  parts.info.max_context = 1000;
  parts.clock = std::make_shared<SystemClock>();
  parts.executor = std::move(executor);
  parts.encoder = std::make_shared<const PromptEncoder>(std::move(text));
  parts.gateway = {.max_context = 1000, .max_sequences = 512, .eos_tokens = {fakes::kEos}};
  parts.scheduler = {.max_batch = 4, .prefill_chunk = 32, .max_queue = 512};
  parts.pools.layout =
      KvLayout::uniform({.layers = 2, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .dtype = KvDType::kF32});
  parts.pools.device_pages = 80;
  parts.pools.host_pages = 40;
  return parts;
}

GenerationRequest text_request(std::string text, std::int64_t max_tokens) {
  GenerationRequest out;
  out.prompts.push_back(TextPrompt{.text = std::move(text)});
  out.max_tokens = max_tokens;
  return out;
}

template <class Executor>
class ServingSystemOf : public testing::Test {};
using SimpleExecutors = testing::Types<fakes::ScriptedExecutor, fakes::PendingExecutor>;
TYPED_TEST_SUITE(ServingSystemOf, SimpleExecutors);

TYPED_TEST(ServingSystemOf, TwoHundredRequestsAtOnce) {
  MetricsRegistry metrics;
  auto system = start_serving(parts_with(std::make_shared<TypeParam>()), metrics);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 200; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    system->generate(text_request(std::string(static_cast<std::size_t>(1 + i), 'x'), 20), sinks.back());
  }
  for (int i = 0; i < 200; ++i) {
    sinks[static_cast<std::size_t>(i)]->wait_until_ended();
    ASSERT_TRUE(sinks[static_cast<std::size_t>(i)]->usage);
    EXPECT_EQ(sinks[static_cast<std::size_t>(i)]->choices.at(0).text[0], 'a' + i % 26);
  }
  EXPECT_EQ(system->health().state, HealthState::kReady);
  system->stop(std::chrono::milliseconds(1000));
  EXPECT_EQ(metrics.gauge("hotset_pool_pages_free", "", {{"tier", "device"}}).value(), 80);
}

template <class Executor>
class BusyServingSystem : public testing::Test {};
using GatedExecutors = testing::Types<GatedExecutor, GatedPendingExecutor>;
TYPED_TEST_SUITE(BusyServingSystem, GatedExecutors);

TYPED_TEST(BusyServingSystem, StopEndsEveryRequest) {
  MetricsRegistry metrics;
  auto executor = std::make_shared<TypeParam>();
  auto system = start_serving(parts_with(executor), metrics);
  auto running = std::make_shared<RecordingSink>();
  auto waiting = std::make_shared<RecordingSink>();
  system->generate(text_request("a", 500), running);
  for (int i = 0; i < 5; ++i) system->generate(text_request("b", 500), waiting = std::make_shared<RecordingSink>());
  executor->gate->wait_until_entered();
  std::thread stopper([&] { system->stop(std::chrono::milliseconds(1)); });
  running->wait_until_ended();
  waiting->wait_until_ended();
  executor->gate->open();  // the step under way ends; stop() joins the stream
  stopper.join();
  ASSERT_TRUE(running->error && waiting->error);
  EXPECT_EQ(running->error->code, ErrorCode::kUnavailable);
  auto late = std::make_shared<RecordingSink>();
  system->generate(text_request("c", 5), late);
  ASSERT_TRUE(late->error);
  EXPECT_EQ(late->error->code, ErrorCode::kUnavailable);
  bool answered = false;
  system->detokenize({65}, [&](const Result<std::string>& text) { answered = !text.ok(); });
  EXPECT_TRUE(answered);
}

TEST(ServingSystem, StopLetsRunningAnswersEnd) {
  MetricsRegistry metrics;
  auto system = start_serving(parts_with(std::make_shared<fakes::ScriptedExecutor>()), metrics);
  auto sink = std::make_shared<RecordingSink>();
  system->generate(text_request("a", 300), sink);
  system->stop(std::chrono::milliseconds(60'000));
  ASSERT_TRUE(sink->usage);
  EXPECT_EQ(sink->usage->completion_tokens, 300);
}

// A text that is being read, and two that wait for it, when the server stops.
void stop_while_reading(std::chrono::milliseconds deadline, std::vector<ErrorCode>& refusals, int& reads) {
  const auto gate = std::make_shared<Gate>();
  PromptEncoderParts text;
  text.tokenizer = fakes::byte_tokenizer();
  text.vocabulary = fakes::kVocabulary;
  text.render = [gate, &reads](const ChatPrompt&) -> Result<std::string> {
    ++reads;
    gate->arrive();
    gate->pass();
    return std::string("ab");
  };
  ServingParts parts = parts_with(std::make_shared<fakes::ScriptedExecutor>());
  parts.encoder = std::make_shared<const PromptEncoder>(std::move(text));
  MetricsRegistry metrics;
  auto system = start_serving(std::move(parts), metrics);
  int answers = 0;  // of one thread, which stop() joins
  for (int i = 0; i < 3; ++i) {
    system->tokenize({.prompt = ChatPrompt{}}, [&](const Result<TokenizeResponse>& answer) {
      ++answers;
      if (!answer) refusals.push_back(answer.error().code);
    });
  }
  gate->wait_until_entered();
  std::thread stopper([&] { system->stop(deadline); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // beyond the short deadline
  gate->open();
  stopper.join();
  EXPECT_EQ(answers, 3);
}

TEST(ServingSystem, StopReadsTheTextsThatWaitUntilItsDeadlineOnly) {
  std::vector<ErrorCode> refusals;
  int reads = 0;
  stop_while_reading(std::chrono::milliseconds(1), refusals, reads);
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(refusals, std::vector<ErrorCode>(2, ErrorCode::kUnavailable));
  refusals.clear();
  reads = 0;
  stop_while_reading(std::chrono::milliseconds(60'000), refusals, reads);
  EXPECT_EQ(reads, 3);
  EXPECT_TRUE(refusals.empty());
}

TEST(ServingSystem, ACancelledSinkIsReleasedAndHearsNothing) {
  MetricsRegistry metrics;
  auto executor = std::make_shared<GatedExecutor>();
  auto system = start_serving(parts_with(executor), metrics);
  auto sink = std::make_shared<RecordingSink>();
  const RequestHandle handle = system->generate(text_request("a", 500), sink);
  executor->gate->wait_until_entered();
  system->cancel(handle);
  executor->gate->open();
  auto next = std::make_shared<RecordingSink>();
  system->generate(text_request("bb", 3), next);
  next->wait_until_ended();
  EXPECT_TRUE(next->usage);
  EXPECT_FALSE(sink->ended());
  EXPECT_TRUE(sink->choices.empty());
  system->stop(std::chrono::milliseconds(1000));
  EXPECT_EQ(sink.use_count(), 1);
}

ServerConfig tiny(const std::string& name) {
  ServerConfig config;
  config.model = std::string(HOTSET_FIXTURES) + "/" + name;
  config.threads = 1;
  config.device_kv_tokens = 4096;
  config.host_kv_bytes = 64 << 20;
  config.max_batch = 4;
  return config;
}

class RealCheckpoint : public testing::TestWithParam<const char*> {};

TEST_P(RealCheckpoint, GivesTheReferencesTokens) {
  MetricsRegistry metrics;
  auto started = ServingSystem::start(tiny(GetParam()), metrics);
  ASSERT_TRUE(started.ok()) << started.error().message;
  ServingSystem& system = *started.value();
  EXPECT_NE(system.info().summary.find("4096 tokens"), std::string::npos) << system.info().summary;
  std::ifstream file(std::string(HOTSET_FIXTURES) + "/" + GetParam() + "/expected.json");
  const nlohmann::json expected = nlohmann::json::parse(file);
  int compared = 0;
  for (const auto& one : expected.at("cases")) {
    GenerationRequest request;
    request.prompts.push_back(TokenPrompt{.tokens = one.at("input_ids").get<std::vector<std::int32_t>>()});
    const auto greedy = one.at("greedy").get<std::vector<std::int32_t>>();
    request.max_tokens = static_cast<std::int64_t>(greedy.size());
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    auto sink = std::make_shared<RecordingSink>();
    system.generate(std::move(request), sink);
    sink->wait_until_ended();
    ASSERT_TRUE(sink->usage) << (sink->error ? sink->error->message : "");
    EXPECT_EQ(sink->choices.at(0).token_ids, greedy);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Tiny, RealCheckpoint, testing::Values("tiny-llama", "tiny-qwen3"),
                         [](const auto& info) { return std::string(info.param).substr(5); });

TEST(ServingSystemStart, ImpossibleOptionsAreRefusedByName) {
  const auto refusal = [](const ServerConfig& config) {
    MetricsRegistry metrics;
    const auto started = ServingSystem::start(config, metrics);
    return started.ok() ? std::string("started") : started.error().param;
  };
  ServerConfig config = tiny("tiny-llama");
  config.algorithm = "dsa";  // the model has no indexer
  EXPECT_EQ(refusal(config), "--algorithm");
  config = tiny("tiny-llama");
  config.device = "cuda";
  EXPECT_EQ(refusal(config), "--device");
  config = tiny("tiny-llama");
  config.algorithm = "streaming";
  config.hot_ring = 32;
  EXPECT_EQ(refusal(config), "--hot-ring");
  config = tiny("tiny-llama");
  config.device_kv_tokens = std::int64_t{1} << 50;
  EXPECT_EQ(refusal(config), "--device-kv-tokens");
  config = tiny("tiny-llama");
  config.host_kv_bytes = std::int64_t{1} << 60;
  EXPECT_EQ(refusal(config), "--host-kv");
  config = tiny("tiny-llama");
  config.host_kv_bytes = 10;
  EXPECT_EQ(refusal(config), "--host-kv");
  config = tiny("tiny-llama");
  config.max_context = 1'000'000'000;
  EXPECT_EQ(refusal(config), "--max-context");
  config = tiny("tiny-llama");
  config.chat_template = "no-such-file.jinja";
  EXPECT_EQ(refusal(config), "--chat-template");
}

}  // namespace
}  // namespace hotset::actors
