// On a GPU, in batches of one size: what runs beside a request changes no bit of its answer, whatever its algorithm and
// its sampling, and neither does a neighbour that fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <random>

#include "core/concat.h"
#include "tests/engine/device_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/mode_runs.h"
#include "tests/seed.h"

namespace hotset::testing {
namespace {

using kernels::ElementType;

struct NeighbourCase {
  std::string fixture;
  std::string algorithm;
  std::vector<std::string> further;
  ElementType compute = ElementType::kF32;
  KvDType dtype = KvDType::kF32;
};
std::ostream& operator<<(std::ostream& out, const NeighbourCase& one) {
  return out << one.fixture << " " << one.algorithm << (one.compute == ElementType::kF32 ? "" : " bf16");
}

std::filesystem::path folder_of(const NeighbourCase& one) {
  return one.algorithm == "dsa" ? unpacked_fixture(one.fixture) : fixture(one.fixture);
}

ModeDriverOptions options_of(const NeighbourCase& one) {
  return {.checkpoint = folder_of(one),
          .algorithm = one.algorithm,
          .further = one.further,
          .basis_file = folder_of(one) / "index_basis.safetensors",
          .dtype = one.dtype,
          .threshold = 40,
          .pool_tokens = 12288,
          .ahead = true,
          .make_runner = DeviceRunners{.compute = one.compute, .whole_batches = true}};
}

// Some greedy, some drawn, some with penalties and biases.
model::SamplingParams sampling_of(std::size_t request) {
  model::SamplingParams params{.temperature = 0, .logprobs = 0};
  if (request % 4 == 1 || request % 4 == 3) {
    params.temperature = 0.9F;
    params.top_p = 0.95F;
    params.seed = 100 + request;
  }
  if (request % 4 >= 2) {
    params.repetition_penalty = 1.2F;
    params.presence_penalty = 0.3F;
    params.frequency_penalty = 0.2F;
    params.logit_bias = {{static_cast<std::int32_t>(5 + request), 2.0F}, {9, -3.0F}};
  }
  return params;
}

class DeviceNeighbours : public ::testing::TestWithParam<NeighbourCase> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    seed_ = test_seed();
    random_.seed(seed_);
  }
  std::vector<ModeRequest> requests_of(std::int64_t count) {
    auto requests = random_requests(random_, {.count = count,
                                              .most_prompt = 200,
                                              .least_tokens = 6,
                                              .most_tokens = 24,
                                              .algorithms = 1 + GetParam().further.size()});
    for (std::size_t i = 0; i < requests.size(); ++i) requests[i].sampling = sampling_of(i);
    return requests;
  }

  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

class DeviceAndCpu : public DeviceNeighbours {};  // the CPU computes in float32

TEST_P(DeviceNeighbours, ARequestAloneEqualsTheSameAmong31Others) {
  SCOPED_TRACE(concat("seed ", seed_));
  const auto requests = requests_of(32);
  ModeDriver driver(options_of(GetParam()), seed_);
  const auto together = run_resident(driver, requests);
  Changes changes;
  ASSERT_TRUE(same_answers(run_changing(driver, requests, random_, changes), together));
  for (std::size_t i = random_() % 4; i < requests.size(); i += 3) {
    SCOPED_TRACE(concat("request ", i));
    ASSERT_TRUE(same_answers(run_resident(driver, {requests[i]}), {together[i]}));
  }
  ASSERT_TRUE(same_answers(run_changing(driver, {requests[31]}, random_, changes), {together[31]}));
}

// A bucket of 48, whose hot rows go in groups that end within sequences and behind them.
TEST_P(DeviceNeighbours, FortyThreeTogether) {
  SCOPED_TRACE(concat("seed ", seed_));
  const auto requests = requests_of(43);
  ModeDriverOptions options = options_of(GetParam());
  options.max_batch = 43;
  ModeDriver driver(options, seed_);
  const auto together = run_resident(driver, requests);
  Changes changes;
  ASSERT_TRUE(same_answers(run_changing(driver, requests, random_, changes), together));
  EXPECT_GT(changes.demoted, 0);
  const std::size_t one = random_() % requests.size();
  ASSERT_TRUE(same_answers(run_resident(driver, {requests[one]}), {together[one]})) << "request " << one;
}

// Greedy with penalties and biases: what the CPU's sampler gives.
TEST_P(DeviceAndCpu, PenaltiesAsOnTheCpu) {
  SCOPED_TRACE(concat("seed ", seed_));
  auto requests = requests_of(6);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling = sampling_of(2);
    requests[i].sampling.temperature = 0;
    requests[i].sampling.repetition_penalty = 1.0F + 0.1F * static_cast<float>(i);
  }
  ModeDriverOptions options = options_of(GetParam());
  ModeDriver driver(options, seed_);
  options.make_runner = nullptr;
  ModeDriver cpu(options, seed_);
  const auto got = run_resident(driver, requests);
  const auto wanted = run_resident(cpu, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::size_t t = 0; t < wanted[i].tokens.size(); ++t) {
      ASSERT_NEAR(got[i].logprobs[t], wanted[i].logprobs[t], 2e-3) << "request " << i << ", token " << t;
      ASSERT_EQ(got[i].tokens[t], wanted[i].tokens[t]) << "request " << i << ", token " << t;
    }
  }
}

const NeighbourCase kFloatCases[] = {
    {.fixture = "tiny-llama", .algorithm = "lowrank", .further = {"streaming", "dense"}},
    {.fixture = "tiny-qwen3", .algorithm = "quest", .further = {"streaming"}},
    {.fixture = "tiny-deepseek-v32", .algorithm = "dsa"}};

INSTANTIATE_TEST_SUITE_P(Floats, DeviceAndCpu, ::testing::ValuesIn(kFloatCases));
INSTANTIATE_TEST_SUITE_P(Floats, DeviceNeighbours, ::testing::ValuesIn(kFloatCases));
INSTANTIATE_TEST_SUITE_P(Others, DeviceNeighbours,
                         ::testing::Values(NeighbourCase{.fixture = "tiny-qwen3",
                                                         .algorithm = "lowrank",
                                                         .further = {"streaming", "dense"},
                                                         .compute = ElementType::kBF16,
                                                         .dtype = KvDType::kBF16},
                                           NeighbourCase{.fixture = "tiny-glm-dsa",
                                                         .algorithm = "dsa",
                                                         .compute = ElementType::kBF16,
                                                         .dtype = KvDType::kFp8}));

constexpr std::int32_t kBadToken = 7;

// A copy of a fixture whose embedding of kBadToken is no number. Its output matrix is another one.
class DamagedModel {
 public:
  explicit DamagedModel(const std::filesystem::path& source, std::uint64_t seed)
      : folder_(std::filesystem::temp_directory_path() / concat("hotset-damaged-", seed)) {
    std::filesystem::copy(source, folder_);
    const auto path = folder_ / "model.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
    std::string header(header_bytes, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const auto tensor = nlohmann::json::parse(header).at("model.embed_tokens.weight");
    HS_CHECK(tensor.at("dtype") == "BF16", "the fixture's type");
    const std::int64_t hidden = tensor.at("shape").at(1);
    const std::int64_t begin = tensor.at("data_offsets").at(0);
    const std::vector<std::uint16_t> row(static_cast<std::size_t>(hidden), 0x7fc0);
    file.seekp(8 + static_cast<std::int64_t>(header_bytes) + begin + kBadToken * hidden * 2);
    file.write(reinterpret_cast<const char*>(row.data()), hidden * 2);
    HS_CHECK(file.good(), "the copy is written");
  }
  DamagedModel(const DamagedModel&) = delete;
  DamagedModel& operator=(const DamagedModel&) = delete;
  ~DamagedModel() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

class DeviceFailures : public DeviceNeighbours {};

TEST_P(DeviceFailures, OneSequenceFailsAlone) {
  SCOPED_TRACE(concat("seed ", seed_));
  const DamagedModel model(folder_of(GetParam()), seed_);
  ModeDriverOptions options = options_of(GetParam());
  options.checkpoint = model.folder();
  ModeDriver sound(options, seed_);
  ModeDriver damaged(options, seed_ + 1);
  for (int run = 0; run < 4; ++run) {
    SCOPED_TRACE(concat("run ", run));
    std::vector<ModeRequest> requests =
        random_requests(random_, {.count = 6, .algorithms = 1 + options.further.size()});
    for (ModeRequest& request : requests) {
      std::ranges::replace(request.prompt, kBadToken, kBadToken + 1);
      request.sampling.logit_bias = {{kBadToken, -100.0F}};
    }
    const auto wanted = run_resident(sound, requests);
    // One fails at its prompt, one at the token that it is made to generate.
    auto with_bad = requests;
    with_bad[2].prompt[with_bad[2].prompt.size() / 2] = kBadToken;
    with_bad[2].prompt.back() = kBadToken;  // an earlier one need not be selected
    with_bad[4].sampling.logit_bias = {{kBadToken, 100.0F}};
    Changes changes;
    const auto got = run_changing(damaged, with_bad, random_, changes);
    for (const std::size_t i : {0, 1, 3, 5}) {
      EXPECT_EQ(damaged.sequences()[i].error, "") << "sequence " << i;
      ASSERT_TRUE(same_answers({got[i]}, {wanted[i]})) << "sequence " << i;
    }
    EXPECT_NE(damaged.sequences()[2].error.find("not numbers"), std::string::npos);
    EXPECT_NE(damaged.sequences()[4].error.find("not numbers"), std::string::npos);
    EXPECT_EQ(got[2].tokens.size(), 0U);
    EXPECT_EQ(got[4].tokens, std::vector<std::int32_t>{kBadToken});
    // Their pages serve others.
    ASSERT_TRUE(same_answers(run_changing(damaged, requests, random_, changes), wanted));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, DeviceFailures,
    ::testing::Values(NeighbourCase{.fixture = "tiny-qwen3", .algorithm = "lowrank", .further = {"streaming", "dense"}},
                      NeighbourCase{.fixture = "tiny-qwen3",
                                    .algorithm = "quest",
                                    .compute = ElementType::kBF16,
                                    .dtype = KvDType::kBF16},
                      NeighbourCase{.fixture = "tiny-deepseek-v32", .algorithm = "dsa"},
                      NeighbourCase{.fixture = "tiny-deepseek-v32",
                                    .algorithm = "dsa",
                                    .compute = ElementType::kBF16,
                                    .dtype = KvDType::kFp8}));

// A long prompt's last pages are still on their way to the host when a prompt from the host gets those host pages.
class DeviceLateOffloads : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(DeviceLateOffloads, DoNotReachTheNextOwnerOfTheirPages) {
  constexpr std::int64_t kLong = 4096;
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  ModeDriverOptions options{.checkpoint = fixture("tiny-qwen3"),
                            .algorithm = "lowrank",
                            .basis_file = fixture("tiny-qwen3") / "index_basis.safetensors",
                            .threshold = 40,
                            .prefill_chunk = kLong,
                            .pool_tokens = kLong + kPageTokens,  // so that the second takes pages of the first
                            .max_batch = 4,
                            .ahead = GetParam(),
                            .make_runner = DeviceRunners{.whole_batches = true}};
  ModeDriver driver(options, seed);
  const ModeRequest first{.prompt = random_prompt(kLong, random), .new_tokens = 1};
  ModeRequest second{.prompt = random_prompt(600, random), .new_tokens = 4};
  const auto alone = run_resident(driver, {second});
  for (int round = 0; round < 50; ++round) {
    driver.clear();
    driver.add(first);
    driver.move(driver.sequences()[0], sparse::KvMode::kResident);
    while (!driver.done()) driver.step();
    driver.release(driver.sequences()[0]);
    driver.add(second);
    while (driver.sequences()[1].prefilling()) driver.step();
    driver.move(driver.sequences()[1], sparse::KvMode::kResident);
    while (!driver.done()) driver.step();
    ASSERT_TRUE(same_answers({driver.answers()[1]}, alone)) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, DeviceLateOffloads, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Ahead" : "OneByOne"; });

}  // namespace
}  // namespace hotset::testing
