// Hot mode changes nothing: tokens and log-probabilities with a small device pool equal, bit for bit, those with room
// for everything.
#include <gtest/gtest.h>

#include <random>

#include "sparse/selection.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/sparse/random_selection.h"

namespace hotset::testing {
namespace {

std::vector<std::int32_t> random_prompt(std::mt19937& random, std::int64_t length) {
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (auto& token : prompt) token = std::uniform_int_distribution<std::int32_t>(2, 511)(random);
  return prompt;
}

void expect_same(const std::vector<DriverAnswer>& hot, const std::vector<DriverAnswer>& resident) {
  ASSERT_EQ(hot.size(), resident.size());
  for (std::size_t i = 0; i < hot.size(); ++i) {
    ASSERT_EQ(hot[i].tokens.size(), resident[i].tokens.size());
    for (std::size_t t = 0; t < hot[i].tokens.size(); ++t) {
      ASSERT_EQ(hot[i].tokens[t].token, resident[i].tokens[t].token) << "request " << i << ", token " << t;
      ASSERT_EQ(hot[i].tokens[t].logprob, resident[i].tokens[t].logprob) << "request " << i << ", token " << t;
    }
  }
}

struct HotCase {
  std::shared_ptr<const sparse::SelectionAlgorithm> algorithm;
  std::int64_t threshold = 0;
  std::int64_t hot_ring = 128;
  std::int64_t device_tokens = 512;
  KvModeChoice mode = KvModeChoice::kHot;
  KvDType dtype = KvDType::kF32;
};

DriverOptions options_of(const HotCase& one) {
  return {.checkpoint = fixture("tiny-llama"),
          .policy = {.algorithm = one.algorithm, .threshold = one.threshold},
          .mode = one.mode,
          .dtype = one.dtype,
          .device_tokens = one.device_tokens,
          .hot_ring = one.hot_ring};
}

// Returns the hot run's driver for further questions.
std::unique_ptr<EngineDriver> compare(const HotCase& one, const std::vector<DriverRequest>& requests) {
  HotCase roomy = one;
  roomy.mode = KvModeChoice::kResident;
  roomy.device_tokens = 16384;
  EngineDriver resident(options_of(roomy));
  auto hot = std::make_unique<EngineDriver>(options_of(one));
  expect_same(hot->run(requests), resident.run(requests));
  EXPECT_EQ(resident.stats().misses, 0);
  return hot;
}

TEST(HotMode, StreamingAtEdgeLengths) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  const auto streaming = sparse::make_streaming(16, 112);
  ASSERT_TRUE(streaming.ok());
  for (const std::int64_t length : {1, 63, 64, 65, 200, 448, 511, 512, 513, 1000, 1023}) {
    SCOPED_TRACE(concat("length ", length));
    const auto hot =
        compare({.algorithm = streaming.value()}, {{.prompt = random_prompt(random, length), .new_tokens = 40}});
    // The first block leaves ring and slack (192 rows) and is then loaded once per layer.
    const bool past_ring = length + 40 > 128 + 64 + 16;
    EXPECT_EQ(hot->stats().misses > 0, past_ring);
    EXPECT_GT(hot->stats().hot_sequences, 0);
  }
}

TEST(HotMode, FourConversationsShareAPoolOfTwo) {
  std::mt19937 random(7);
  const auto streaming = sparse::make_streaming(16, 112);
  ASSERT_TRUE(streaming.ok());
  std::vector<DriverRequest> requests;
  for (const std::int64_t length : {700, 900, 650, 1100}) {
    requests.push_back({.prompt = random_prompt(random, length), .new_tokens = 48});
  }
  const auto hot = compare({.algorithm = streaming.value(), .device_tokens = 1024}, requests);
  EXPECT_GT(hot->steps_with_two_hot(), 0);
  EXPECT_EQ(hot->counters().device_pages_free, hot->counters().device_pages_total);
  EXPECT_EQ(hot->counters().host_pages_free, hot->counters().host_pages_total);
}

TEST(HotMode, RandomSelectionsEvictAndReload) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  for (const std::int32_t block : {1, 8, 16, 64}) {
    for (const std::int64_t ring : {std::int64_t{1}, std::int64_t{100}}) {
      for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16}) {
        SCOPED_TRACE(concat("block ", block, ", ring ", ring));
        const auto algorithm = std::make_shared<sparse::RandomSelection>(seed, block, 192 / block);
        const auto hot = compare({.algorithm = algorithm, .hot_ring = ring, .device_tokens = 1536, .dtype = dtype},
                                 {{.prompt = random_prompt(random, 800), .new_tokens = 60},
                                  {.prompt = random_prompt(random, 30), .new_tokens = 200}});
        EXPECT_GT(hot->stats().misses, 1000 / block);
        EXPECT_GT(hot->stats().hits, 0);
      }
    }
  }
}

TEST(HotMode, ResidentUntilTheThresholdThenHot) {
  std::mt19937 random(11);
  const auto streaming = sparse::make_streaming(16, 112);
  ASSERT_TRUE(streaming.ok());
  for (const std::int64_t prompt : {250, 299, 300, 301, 400}) {
    SCOPED_TRACE(concat("prompt ", prompt));
    const auto hot = compare({.algorithm = streaming.value(), .threshold = 300, .device_tokens = 1024},
                             {{.prompt = random_prompt(random, prompt), .new_tokens = 100}});
    EXPECT_EQ(hot->counters().entered_hot, 1);
  }
}

TEST(HotMode, AutoIsResidentWithRoomAndHotWithout) {
  std::mt19937 random(12);
  const auto streaming = sparse::make_streaming(16, 112);
  ASSERT_TRUE(streaming.ok());
  const std::vector<DriverRequest> requests{{.prompt = random_prompt(random, 1000), .new_tokens = 30}};
  const HotCase small{.algorithm = streaming.value(), .device_tokens = 512, .mode = KvModeChoice::kAuto};
  EXPECT_EQ(compare(small, requests)->counters().entered_hot, 1);
  HotCase large = small;
  large.device_tokens = 2048;
  EXPECT_EQ(compare(large, requests)->counters().entered_hot, 0);
}

// A host pool for three of eight long requests and a device pool for hardly one of them: all end with the answers of
// an idle engine, set aside and resumed on the way.
TEST(HotMode, EightRequestsWhereTheHostHoldsThree) {
  std::mt19937 random(13);
  constexpr std::int64_t kPages = 6;  // of 150 + 200 tokens and the row behind them
  std::vector<DriverRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back({.prompt = random_prompt(random, 150), .new_tokens = 200});
  for (const bool dense : {true, false}) {
    SCOPED_TRACE(dense ? "dense" : "streaming");
    DriverOptions options{.checkpoint = fixture("tiny-llama")};
    if (!dense) options.policy = {.algorithm = require(sparse::make_streaming(16, 48)), .threshold = 200};
    options.hot_ring = 48;
    EngineDriver idle(options);
    std::vector<DriverAnswer> wanted;
    for (const DriverRequest& request : requests) wanted.push_back(idle.run({request}, wanted.size() + 1).front());
    EXPECT_EQ(idle.counters().entered_parked + idle.counters().entered_hot, 0);
    options.host_tokens = 3 * kPages * kPageTokens;
    options.device_tokens = (kPages + 1) * kPageTokens;
    EngineDriver full(options);
    expect_same(full.run(requests), wanted);
    EXPECT_GT(full.counters().entered_parked, 0);
    EXPECT_EQ(full.counters().resumed, full.counters().entered_parked);
    EXPECT_EQ(full.counters().entered_hot > 0, !dense);
    EXPECT_EQ(full.counters().device_pages_free, full.counters().device_pages_total);
    EXPECT_EQ(full.counters().host_pages_free, full.counters().host_pages_total);
  }
}

}  // namespace
}  // namespace hotset::testing
