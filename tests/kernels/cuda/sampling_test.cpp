#include "kernels/cuda/sampling.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/sampler.h"
#include "tests/kernels/cuda/device_vectors.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {
namespace {

using SamplingDevice = GpuTest;

struct Answer {
  std::vector<std::int32_t> tokens, top_ids;
  std::vector<std::uint8_t> usable, kept;
  std::vector<float> logprobs, top_logprobs;
};

constexpr std::int32_t kBlocksPerRow[] = {0, 1, 2, 4, 8};

// One launch; `counts` may be null.
Answer sample(const std::vector<float>& logits, std::int64_t vocabulary, const std::vector<SamplingRow>& settings,
              DeviceBuffer<std::uint32_t>* counts, const std::vector<std::int32_t>& bias_ids,
              const std::vector<float>& bias_values, std::int32_t blocks_per_row = 0) {
  const std::size_t rows = settings.size();
  const auto device_logits = to_device(logits);
  const auto device_settings = to_device(settings);
  const auto device_bias_ids = to_device(bias_ids);
  const auto device_bias_values = to_device(bias_values);
  DeviceBuffer<std::byte> workspace(sampling_workspace_bytes(static_cast<std::int64_t>(rows), vocabulary));
  workspace.fill_bytes(0xff);
  const auto tokens = to_device(std::vector<std::int32_t>(rows, -77));
  const auto usable = to_device(std::vector<std::uint8_t>(rows, 77));
  const auto logprobs = to_device(std::vector<float>(rows, -77.0F));
  const auto top_ids = to_device(std::vector<std::int32_t>(rows * kMostAlternatives, -77));
  const auto top_logprobs = to_device(std::vector<float>(rows * kMostAlternatives, -77.0F));
  const auto kept = to_device(std::vector<std::uint8_t>(rows * static_cast<std::size_t>(vocabulary), 77));
  SamplingParams params;
  params.logits = device_logits.data();
  params.rows = static_cast<std::int64_t>(rows);
  params.vocabulary = vocabulary;
  params.settings = device_settings.data();
  params.counts = counts != nullptr ? counts->data() : nullptr;
  params.bias_ids = device_bias_ids.data();
  params.bias_values = device_bias_values.data();
  params.workspace = workspace.data();
  params.tokens = tokens.data();
  params.usable = usable.data();
  params.logprobs = logprobs.data();
  params.top_ids = top_ids.data();
  params.top_logprobs = top_logprobs.data();
  params.kept = kept.data();
  params.blocks_per_row = blocks_per_row;
  launch_sampling(params, nullptr);
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(same_bits(to_host(device_logits), logits)) << "the logits were changed";
  return {to_host(tokens), to_host(top_ids), to_host(usable), to_host(kept), to_host(logprobs), to_host(top_logprobs)};
}

void expect_scores(const Answer& answer, std::size_t row, const model::SampledToken& expected,
                   const std::string& what) {
  ASSERT_NEAR(answer.logprobs[row], expected.logprob, 1e-5F * std::max(1.0F, std::abs(expected.logprob))) << what;
  for (std::size_t i = 0; i < kMostAlternatives; ++i) {
    const std::size_t at = row * kMostAlternatives + i;
    if (i >= expected.top.size()) {
      ASSERT_EQ(answer.top_ids[at], -1) << what << ", alternative " << i;
      continue;
    }
    ASSERT_EQ(answer.top_ids[at], expected.top[i].token) << what << ", alternative " << i;
    if (std::isinf(expected.top[i].logprob)) {
      ASSERT_EQ(answer.top_logprobs[at], expected.top[i].logprob) << what << ", alternative " << i;
      continue;
    }
    ASSERT_NEAR(answer.top_logprobs[at], expected.top[i].logprob,
                1e-5F * std::max(1.0F, std::abs(expected.top[i].logprob)))
        << what << ", alternative " << i;
  }
}

// Sequences of several steps: the counts live on the device, in slots that are not the rows.
TEST_F(SamplingDevice, GreedyWithPenaltiesAsOnTheCpu) {
  Random random;
  constexpr std::int64_t kVocabulary = 203;
  constexpr std::size_t kRows = 12;
  constexpr int kSteps = 25;
  auto counts = to_device(std::vector<std::uint32_t>((kRows + 2) * kVocabulary, 0xdeadbeefU));
  std::vector<model::Sampler> samplers;
  std::vector<SamplingRow> settings(kRows);
  std::vector<std::int32_t> bias_ids;
  std::vector<float> bias_values;
  for (std::size_t row = 0; row < kRows; ++row) {
    model::SamplingParams params;
    params.temperature = 0.0F;
    params.repetition_penalty = row % 3 == 0 ? 1.0F : static_cast<float>(random.uniform(0.7, 1.8));
    params.presence_penalty = row % 2 == 0 ? 0.0F : static_cast<float>(random.uniform(-1, 1));
    params.frequency_penalty = row % 4 < 2 ? 0.0F : static_cast<float>(random.uniform(-0.5, 1));
    params.logprobs = static_cast<std::int32_t>(row * 2) % 21;
    SamplingRow& mine = settings[row];
    mine.temperature = 0.0F;
    mine.repetition_penalty = params.repetition_penalty;
    mine.presence_penalty = params.presence_penalty;
    mine.frequency_penalty = params.frequency_penalty;
    mine.alternatives = params.logprobs;
    mine.slot = static_cast<std::int32_t>(kRows - row);
    mine.bias_begin = static_cast<std::int32_t>(bias_ids.size());
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(row % 5); ++i) {
      bias_ids.push_back(static_cast<std::int32_t>(random.integer(0, 39)) + 40 * i);
      bias_values.push_back(2.0F * random.normal());
      params.logit_bias.emplace_back(bias_ids.back(), bias_values.back());
    }
    mine.bias_count = static_cast<std::int32_t>(bias_ids.size()) - mine.bias_begin;
    std::vector<std::int32_t> prompt;
    for (std::size_t i = 0; i < row * 20; ++i) {
      prompt.push_back(static_cast<std::int32_t>(random.integer(0, kVocabulary - 1)));
    }
    samplers.emplace_back(params, prompt);
    prompt.push_back(-1);  // passed over
    prompt.push_back(kVocabulary);
    const auto device_prompt = to_device(prompt);
    launch_sampling_prompt(
        {counts.data(), kVocabulary, mine.slot, device_prompt.data(), static_cast<std::int64_t>(prompt.size())},
        nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> logits(kRows * kVocabulary);
    for (float& x : logits) x = step % 2 == 0 ? random.normal() : static_cast<float>(random.integer(-3, 3));
    const Answer answer =
        sample(logits, kVocabulary, settings, &counts, bias_ids, bias_values, kBlocksPerRow[step % 5]);
    for (std::size_t row = 0; row < kRows; ++row) {
      std::vector<float> scratch = slice(logits, static_cast<std::int64_t>(row) * kVocabulary, kVocabulary);
      model::SampledToken expected;
      ASSERT_TRUE(samplers[row].sample(scratch, expected));
      const std::string what = "step " + std::to_string(step) + ", row " + std::to_string(row);
      ASSERT_EQ(answer.tokens[row], expected.token) << what;
      ASSERT_EQ(answer.usable[row], 1) << what;
      ASSERT_NO_FATAL_FAILURE(expect_scores(answer, row, expected, what));
    }
  }
  const std::vector<std::uint32_t> after = to_host(counts);
  for (std::size_t i = 0; i < kVocabulary; ++i) {
    ASSERT_EQ(after[i], 0xdeadbeefU) << "slot 0 is nobody's";
    ASSERT_EQ(after[after.size() - 1 - i], 0xdeadbeefU) << "the last slot is nobody's";
  }
}

std::uint64_t philox(std::uint64_t seed, std::uint64_t position) {
  std::uint32_t c[4] = {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0};
  auto k0 = static_cast<std::uint32_t>(seed);
  auto k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c[2];
    const std::uint32_t next[4] = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
                                   static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    std::copy_n(next, 4, c);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return std::uint64_t{c[1]} << 32 | c[0];
}

struct Model {
  std::vector<std::uint8_t> kept;
  std::int32_t token = 0;
};

// The slow, obvious form of filters and draw, with a sort.
Model model_of(const std::vector<float>& logits, const SamplingRow& settings) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
  const float largest = value(ids.front());
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(value(id)) - static_cast<double>(largest)) /
                    static_cast<double>(settings.temperature));
  };
  const auto whole = [&](std::int32_t id) { return static_cast<std::uint64_t>(std::nearbyint(weight(id) * 0x1p44)); };
  if (settings.top_k > 0) ids.resize(std::min(ids.size(), static_cast<std::size_t>(settings.top_k)));
  if (settings.min_p > 0) std::erase_if(ids, [&](std::int32_t id) { return weight(id) < double{settings.min_p}; });
  if (settings.top_p < 1) {
    std::uint64_t total = 0;
    for (const std::int32_t id : ids) total += whole(id);
    const auto wanted = static_cast<std::uint64_t>(std::ceil(double{settings.top_p} * static_cast<double>(total)));
    std::uint64_t sum = 0;
    std::size_t count = 0;
    while (count < ids.size() && sum < wanted) sum += whole(ids[count++]);
    ids.resize(std::max<std::size_t>(count, 1));
  }
  Model out;
  out.kept.resize(logits.size());
  for (const std::int32_t id : ids) out.kept[static_cast<std::size_t>(id)] = 1;
  std::sort(ids.begin(), ids.end());
  std::uint64_t total = 0;
  for (const std::int32_t id : ids) total += whole(id);
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t number = philox(settings.seed, static_cast<std::uint64_t>(settings.position));
  const auto target = static_cast<std::uint64_t>(Wide{number} * total >> 64U);
  std::uint64_t sum = 0;
  for (const std::int32_t id : ids) {
    sum += whole(id);
    if (sum > target) {
      out.token = id;
      break;
    }
  }
  return out;
}

enum class Logits { kNormal, kFewValues, kEqual, kMasked, kWide };

float draw_logit(Logits kind, Random& random) {
  switch (kind) {
    case Logits::kNormal: return 3.0F * random.normal();
    case Logits::kFewValues: return static_cast<float>(random.integer(-2, 2));
    case Logits::kEqual: return -1.25F;
    case Logits::kWide: return 60.0F * random.normal();  // most weights are 0
    case Logits::kMasked: return random.integer(0, 9) < 8 ? -kInfinity : random.normal();
  }
  return 0.0F;
}

SamplingRow random_settings(std::int64_t vocabulary, Random& random) {
  SamplingRow settings;
  settings.seed = random.engine()();
  settings.position = random.integer(0, std::int64_t{1} << 40);
  settings.temperature = static_cast<float>(random.uniform(0.2, 2.0));
  if (random.integer(0, 1) == 0) settings.top_k = static_cast<std::int32_t>(random.integer(1, vocabulary + 1));
  if (random.integer(0, 3) == 0) settings.top_k = static_cast<std::int32_t>(random.integer(1, 50));
  if (random.integer(0, 1) == 0) settings.top_p = static_cast<float>(random.uniform(0.01, 0.999));
  if (random.integer(0, 2) == 0) settings.min_p = static_cast<float>(random.uniform(0.001, 0.5));
  settings.alternatives = static_cast<std::int32_t>(random.integer(-1, kMostAlternatives));
  return settings;
}

TEST(SamplingModel, PhiloxKnownAnswers) {
  EXPECT_EQ(philox(0, 0), 0xe169c58d6627e8d5U);  // of the Random123 library's own tests
}

TEST_F(SamplingDevice, FiltersAndDrawsAreExact) {
  Random random;
  std::size_t turn = 0;
  for (const std::int64_t vocabulary : {1, 2, 31, 33, 1000, 1025, 50'257, 262'144})
    for (const Logits kind : {Logits::kNormal, Logits::kFewValues, Logits::kEqual, Logits::kMasked, Logits::kWide}) {
      const std::int32_t blocks = kBlocksPerRow[turn++ % 6 % 5];
      const std::size_t rows = vocabulary > 100'000 ? 6 : 14;
      std::vector<float> logits(rows * static_cast<std::size_t>(vocabulary));
      for (float& x : logits) x = draw_logit(kind, random);
      std::vector<SamplingRow> settings;
      for (std::size_t row = 0; row < rows; ++row) {
        settings.push_back(random_settings(vocabulary, random));
        // Something is finite in every row.
        logits[row * static_cast<std::size_t>(vocabulary) +
               static_cast<std::size_t>(random.integer(0, vocabulary - 1))] = kind == Logits::kEqual ? -1.25F : 1.0F;
      }
      const Answer answer = sample(logits, vocabulary, settings, nullptr, {}, {}, blocks);
      for (std::size_t row = 0; row < rows; ++row) {
        const SamplingRow& mine = settings[row];
        const std::vector<float> one = slice(logits, static_cast<std::int64_t>(row) * vocabulary, vocabulary);
        const Model expected = model_of(one, mine);
        const std::string what = "vocabulary " + std::to_string(vocabulary) + ", kind " +
                                 std::to_string(static_cast<int>(kind)) + ", blocks " + std::to_string(blocks) +
                                 ", row " + std::to_string(row) + ", temperature " + std::to_string(mine.temperature) +
                                 ", top-k " + std::to_string(mine.top_k) + ", top-p " + std::to_string(mine.top_p) +
                                 ", min-p " + std::to_string(mine.min_p);
        for (std::size_t id = 0; id < one.size(); ++id) {
          ASSERT_EQ(answer.kept[row * one.size() + id], expected.kept[id])
              << what << ": token " << id << " with logit " << one[id];
        }
        ASSERT_EQ(answer.tokens[row], expected.token) << what;
        if (mine.alternatives >= 0) {
          ASSERT_NO_FATAL_FAILURE(
              expect_scores(answer, row, model::score_token(one, expected.token, mine.alternatives), what));
        }
        // Alone in a launch: the same.
        if (row % 5 == 0) {
          const Answer alone = sample(one, vocabulary, {mine}, nullptr, {}, {});
          ASSERT_EQ(alone.tokens[0], answer.tokens[row]) << what << ", alone";
          ASSERT_TRUE(same_bits(alone.logprobs, {answer.logprobs[row]})) << what << ", alone";
        }
        // What the CPU's sampler draws was kept.
        if (vocabulary > 2000) continue;
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
          model::SamplingParams params;
          params.temperature = mine.temperature;
          params.top_p = mine.top_p;
          params.min_p = mine.min_p;
          params.top_k = mine.top_k;
          params.seed = seed;
          std::vector<float> scratch = one;
          model::SampledToken drawn;
          ASSERT_TRUE(model::Sampler(params, {}).sample(scratch, drawn));
          ASSERT_EQ(expected.kept[static_cast<std::size_t>(drawn.token)], 1) << what << ", CPU seed " << seed;
        }
      }
    }
}

// What shares a row, how many rows there are and where a row stands makes no difference to a bit.
TEST_F(SamplingDevice, GridAndBatchMakeNoDifference) {
  Random random;
  constexpr std::int64_t kVocabulary = 30'011;  // rows begin anywhere between 16-byte boundaries
  constexpr std::size_t kRows = 150;            // more than fit at once: one block a row
  constexpr auto kWidth = static_cast<std::size_t>(kVocabulary);
  std::vector<float> logits(kRows * kWidth);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = draw_logit(static_cast<Logits>(i / kWidth % 5), random);
  std::vector<SamplingRow> settings;
  std::vector<std::int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<std::uint32_t> counts(kRows * kWidth);
  for (std::uint32_t& count : counts) {
    count = random.integer(0, 9) == 0 ? static_cast<std::uint32_t>(random.integer(0, 3)) | kPromptToken : 0;
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    logits[row * kWidth + 17] = 0.5F;
    settings.push_back(random_settings(kVocabulary, random));
    SamplingRow& mine = settings.back();
    if (row % 7 == 0) mine.temperature = 0.0F;
    if (row % 3 == 0) {
      mine.slot = static_cast<std::int32_t>(row);
      mine.repetition_penalty = 1.3F;
      mine.frequency_penalty = 0.2F;
    }
    mine.bias_begin = static_cast<std::int32_t>(bias_ids.size());
    for (std::int32_t i = 0; row % 4 == 0 && i < 100; ++i) {
      bias_ids.push_back(i * 300 + 5);
      bias_values.push_back(random.normal());
    }
    mine.bias_count = static_cast<std::int32_t>(bias_ids.size()) - mine.bias_begin;
  }
  auto device_counts = to_device(counts);
  const Answer batch = sample(logits, kVocabulary, settings, &device_counts, bias_ids, bias_values);
  const std::vector<std::uint32_t> counts_after = to_host(device_counts);
  for (const std::int32_t blocks : kBlocksPerRow) {
    device_counts.upload(counts.data(), counts.size());
    const Answer again = sample(logits, kVocabulary, settings, &device_counts, bias_ids, bias_values, blocks);
    const std::string what = std::to_string(blocks) + " blocks a row";
    for (std::size_t row = 0; row < kRows; ++row)
      ASSERT_EQ(again.tokens[row], batch.tokens[row]) << what << ", " << row;
    EXPECT_EQ(again.kept, batch.kept) << what;
    EXPECT_EQ(again.top_ids, batch.top_ids) << what;
    EXPECT_TRUE(same_bits(again.logprobs, batch.logprobs)) << what;
    EXPECT_TRUE(same_bits(again.top_logprobs, batch.top_logprobs)) << what;
    EXPECT_EQ(to_host(device_counts), counts_after) << what;
  }
  device_counts.upload(counts.data(), counts.size());
  for (std::size_t row = 0; row < kRows; row += 11) {
    const std::vector<float> one = slice(logits, static_cast<std::int64_t>(row) * kVocabulary, kVocabulary);
    const Answer alone = sample(one, kVocabulary, {settings[row]}, &device_counts, bias_ids, bias_values);
    ASSERT_EQ(alone.tokens[0], batch.tokens[row]) << "row " << row << " alone";
    ASSERT_TRUE(same_bits(alone.logprobs, {batch.logprobs[row]})) << "row " << row << " alone";
  }
}

// Chi-square of 17 kept tokens: 16 degrees of freedom, above 52 with probability 1e-5. Seeds are fixed.
TEST_F(SamplingDevice, FrequenciesAreThoseOfTheCpu) {
  constexpr std::int64_t kVocabulary = 20;
  constexpr std::size_t kDraws = 40'000;
  std::vector<float> one;
  for (int id = 0; id < kVocabulary; ++id) one.push_back(0.15F * static_cast<float>(id * 7 % kVocabulary));
  std::vector<float> logits;
  std::vector<SamplingRow> settings;
  for (std::size_t i = 0; i < kDraws; ++i) {
    logits.insert(logits.end(), one.begin(), one.end());
    SamplingRow row;
    row.seed = i % 2 == 0 ? 12345 : i;  // one stream's positions, and many streams
    row.position = static_cast<std::int64_t>(i);
    row.temperature = 0.8F;
    row.top_k = 17;
    settings.push_back(row);
  }
  const std::vector<std::int32_t> device = sample(logits, kVocabulary, settings, nullptr, {}, {}).tokens;
  std::vector<std::int32_t> cpu;
  for (std::size_t i = 0; i < kDraws; ++i) {
    model::SamplingParams params;
    params.temperature = 0.8F;
    params.top_k = 17;
    params.seed = i;
    std::vector<float> scratch = one;
    model::SampledToken drawn;
    ASSERT_TRUE(model::Sampler(params, {}).sample(scratch, drawn));
    cpu.push_back(drawn.token);
  }
  const std::vector<std::uint8_t> kept = model_of(one, settings[0]).kept;
  double total = 0;
  for (std::size_t id = 0; id < kVocabulary; ++id) total += kept[id] != 0 ? std::exp(double{one[id]} / 0.8) : 0.0;
  for (const std::vector<std::int32_t>* draws : {&device, &std::as_const(cpu)}) {
    double chi_square = 0;
    for (std::size_t id = 0; id < kVocabulary; ++id) {
      const auto count = std::count(draws->begin(), draws->end(), static_cast<std::int32_t>(id));
      if (kept[id] == 0) {
        ASSERT_EQ(count, 0) << "token " << id << " was filtered";
        continue;
      }
      const double expected = static_cast<double>(kDraws) * std::exp(double{one[id]} / 0.8) / total;
      chi_square += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
    }
    EXPECT_LT(chi_square, 52.0) << (draws == &device ? "device" : "CPU");
    EXPECT_GT(chi_square, 2.0) << "too even: " << (draws == &device ? "device" : "CPU");
  }
}

TEST_F(SamplingDevice, UnusableAndPaddedRows) {
  constexpr std::int64_t kVocabulary = 2000;
  std::vector<float> logits(6 * kVocabulary, 0.5F);
  logits[0 * kVocabulary + 1999] = kNan;
  logits[1 * kVocabulary + 0] = kInfinity;
  std::fill_n(logits.begin() + 2 * kVocabulary, kVocabulary, -kInfinity);
  std::fill_n(logits.begin() + 3 * kVocabulary, kVocabulary, -kInfinity);
  logits[3 * kVocabulary + 1234] = -3e38F;
  logits[4 * kVocabulary + 7] = kNan;  // padded: never read
  std::vector<SamplingRow> settings(6);
  for (SamplingRow& row : settings) row.alternatives = 3;
  settings[4].active = 0;
  settings[5].temperature = 0.0F;
  const Answer answer = sample(logits, kVocabulary, settings, nullptr, {}, {});
  EXPECT_EQ(answer.tokens, (std::vector<std::int32_t>{-1, -1, -1, 1234, -1, 0}));
  EXPECT_EQ(answer.usable, (std::vector<std::uint8_t>{0, 0, 0, 1, 77, 1}));
  EXPECT_EQ(answer.top_ids[3 * kMostAlternatives], 1234);
  EXPECT_EQ(answer.logprobs[3], 0.0F);
  EXPECT_EQ(answer.top_ids[4 * kMostAlternatives], -77) << "a padded row is left alone";
}

}  // namespace
}  // namespace hotset::kernels::cuda
