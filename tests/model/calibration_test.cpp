#include "model/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>

#include "kernels/cpu/cpu_backend.h"
#include "model/calibration_text.h"
#include "model/checkpoint.h"
#include "model/float_conversion.h"
#include "model/index_basis_file.h"
#include "model/kv_layout.h"
#include "model/rope.h"
#include "model/tokenizer/tokenizer.h"
#include "sparse/second_moment.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;

struct LoadedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<ModelWeights> weights;
};

LoadedModel load(const fs::path& path, int threads) {
  LoadedModel model{.checkpoint = open_checkpoint(path).value(), .backend = kernels::make_cpu_backend(threads)};
  model.weights = load_weights(*model.checkpoint, *model.backend).value();
  return model;
}

std::vector<std::int32_t> random_tokens(std::size_t count, std::int32_t vocabulary) {
  std::mt19937 random(17);
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  return tokens;
}

const CalibrationProgress kSilent = [](std::int64_t, std::int64_t) {};

double mean_of(const std::vector<std::vector<double>>& shares) {
  double sum = 0;
  std::size_t count = 0;
  for (const auto& layer : shares) {
    sum = std::accumulate(layer.begin(), layer.end(), sum);
    count += layer.size();
  }
  return sum / static_cast<double>(count);
}

// Layer 0's keys by the formulas, in plain loops: RMSNorm of the embedding, k_proj, RoPE of half-split pairs.
std::vector<float> keys_of_first_layer(Checkpoint& checkpoint, std::span<const std::int32_t> tokens) {
  const ModelConfig& config = checkpoint.config();
  const auto matrix = [&](const char* name) {
    const auto view = checkpoint.matrix(name).value();
    return *to_float32(view.type, view.data);
  };
  const auto embedding = matrix("embed_tokens");
  const auto k_proj = matrix("layers.0.self_attn.k_proj");
  const auto norm = checkpoint.vector("layers.0.input_layernorm").value();
  const RopeTable rope = make_rope(config);
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const auto head_dim = static_cast<std::size_t>(config.head_dim);
  const std::size_t width = static_cast<std::size_t>(config.kv_heads) * head_dim;
  std::vector<float> keys;
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const float* x = &embedding[static_cast<std::size_t>(tokens[position]) * hidden];
    double squares = 0;
    for (std::size_t i = 0; i < hidden; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + config.rms_epsilon);
    std::vector<double> key(width);
    for (std::size_t row = 0; row < width; ++row) {
      for (std::size_t i = 0; i < hidden; ++i) key[row] += k_proj[row * hidden + i] * (x[i] * scale * norm[i]);
    }
    for (std::size_t first = 0; first < width; first += head_dim) {
      for (std::size_t pair = 0; pair < head_dim / 2; ++pair) {
        const double angle = static_cast<double>(position) * rope.inv_freq[pair];
        const double a = key[first + pair], b = key[first + pair + head_dim / 2];
        key[first + pair] = rope.attention_factor * (a * std::cos(angle) - b * std::sin(angle));
        key[first + pair + head_dim / 2] = rope.attention_factor * (b * std::cos(angle) + a * std::sin(angle));
      }
    }
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return keys;
}

TEST(CalibrationSequences, OneWhileItFits) {
  const std::vector<std::int32_t> tokens(4096);
  EXPECT_EQ(calibration_sequences(tokens, 8192).size(), 1U);
  EXPECT_EQ(calibration_sequences(tokens, 4096).front().size(), 4096U);
  EXPECT_EQ(calibration_sequences(std::span(tokens).first(300), 300).size(), 1U);
}

TEST(CalibrationSequences, LongTextsAreSpreadOverPieces) {
  const std::vector<std::int32_t> tokens(100'000);
  const auto begin_of = [&](std::span<const std::int32_t> piece) { return piece.data() - tokens.data(); };
  const auto pieces = calibration_sequences(tokens, 8192);
  ASSERT_EQ(pieces.size(), 4U);
  for (const auto& piece : pieces) EXPECT_EQ(piece.size(), 2048U);
  EXPECT_EQ(begin_of(pieces.front()), 0);
  EXPECT_EQ(begin_of(pieces.back()) + 2048, 100'000);
  EXPECT_GT(begin_of(pieces[1]), 2048);

  for (const std::int64_t max_positions : {1, 100, 512, 2048, 3000, 1 << 20}) {
    for (const std::size_t count : {256, 3001, 4097, 5000, 100'000}) {
      std::int64_t total = 0, last = -1;
      for (const auto& piece : calibration_sequences(std::span(tokens).first(count), max_positions)) {
        EXPECT_LE(static_cast<std::int64_t>(piece.size()), max_positions);
        EXPECT_GT(begin_of(piece), last);
        last = begin_of(piece);
        EXPECT_LE(static_cast<std::size_t>(last) + piece.size(), count);
        total += static_cast<std::int64_t>(piece.size());
      }
      EXPECT_LE(total, 8192);
      EXPECT_GE(total, std::min<std::int64_t>(static_cast<std::int64_t>(count), 4000)) << max_positions;
    }
  }
}

TEST(CalibrationText, IsMixedAndFillsOneSequenceOfTheDefaultModel) {
  const std::string text(calibration_text());
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  for (const char* part : {"```cpp", "```python", "```sql", "```json", "```bash", "Dear ", "1. ", "Assistant:"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  const auto tokenizer = load_tokenizer_json(read_text_file(HOTSET_SMOLLM2_TOKENIZER, 1 << 26).value(), {});
  ASSERT_TRUE(tokenizer.ok());
  const auto tokens = tokenizer.value()->encode(text, {.parse_special = false});
  ASSERT_TRUE(tokens.ok());
  EXPECT_GT(tokens.value().size(), 3900U);
  EXPECT_LE(tokens.value().size(), 4096U);
}

TEST(Calibration, KeysAreTheModelsAfterRope) {
  auto model = load(fixture("tiny-llama"), 1);
  const auto tokens = random_tokens(600, 512);
  const auto made = calibrate(*model.weights, *model.backend, tokens, 8, kSilent);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const sparse::IndexBasis& basis = made.value().basis;
  EXPECT_EQ(basis.rank, 8);
  EXPECT_EQ(made.value().tokens, 600);

  sparse::SecondMoment moment(1, basis.kv_heads, basis.key_dim);
  moment.add(0, keys_of_first_layer(*model.checkpoint, tokens));
  const auto expected = sparse::make_index_basis(moment, 8);
  ASSERT_TRUE(expected.ok());
  for (std::size_t i = 0; i < basis.u[0].size(); ++i) EXPECT_NEAR(basis.u[0][i], expected.value().u[0][i], 2e-3) << i;
  const auto shares = sparse::captured_share(moment, expected.value());
  for (std::size_t head = 0; head < shares[0].size(); ++head) {
    EXPECT_NEAR(made.value().captured[0][head], shares[0][head], 1e-4);
  }

  // The reference's own basis is of other tokens, but of the same channels in the same order: it captures far more than
  // directions by chance do.
  const auto rows = kv_geometry_of(model.checkpoint->config(), KvDType::kF32);
  auto reference = read_index_basis(fixture("tiny-llama") / "index_basis.safetensors", rows);
  ASSERT_TRUE(reference.ok());
  const auto best = sparse::captured_share(moment, sparse::make_index_basis(moment, reference.value().rank).value());
  reference.value().layers = 1;
  const auto theirs = sparse::captured_share(moment, reference.value());
  for (std::size_t head = 0; head < theirs[0].size(); ++head) {
    std::printf("head %zu: captured by the best basis %.4f, by the reference's %.4f\n", head, best[0][head],
                theirs[0][head]);
    EXPECT_LE(theirs[0][head], best[0][head] + 1e-6);
    const double chance = static_cast<double>(reference.value().rank) / basis.key_dim;
    EXPECT_GT(theirs[0][head] - chance, 0.4 * (best[0][head] - chance));
  }
}

TEST(Calibration, TheSameBitsEachTime) {
  const auto tokens = random_tokens(1000, 512);
  std::optional<Hash128> hash;
  for (const int threads : {1, 1, 2}) {
    const auto model = load(fixture("tiny-qwen3"), threads);
    std::int64_t last = 0;
    const auto made =
        calibrate(*model.weights, *model.backend, tokens, std::nullopt, [&](std::int64_t done, std::int64_t total) {
          EXPECT_GT(done, last);
          EXPECT_EQ(total, 1000);
          last = done;
        });
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(last, 1000);
    EXPECT_EQ(made.value().captured.size(), static_cast<std::size_t>(made.value().basis.layers));
    EXPECT_EQ(hash.value_or(made.value().basis.hash), made.value().basis.hash) << threads << " threads";
    hash = made.value().basis.hash;
  }
}

// The latent row with its rope part is the key of one KV head.
TEST(Calibration, LatentModels) {
  for (const char* name : {"tiny-deepseek-v32", "tiny-glm-dsa"}) {
    const auto model = load(fs::path(HOTSET_UNPACKED_FIXTURES) / name, 1);
    const ModelConfig& config = model.weights->config;
    const auto tokens = random_tokens(400, static_cast<std::int32_t>(config.vocabulary));
    const auto made = calibrate(*model.weights, *model.backend, tokens, std::nullopt, kSilent);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const sparse::IndexBasis& basis = made.value().basis;
    EXPECT_EQ(basis.kv_heads, 1);
    EXPECT_EQ(basis.key_dim, config.latent->kv_rank + config.latent->rope_dim);
    EXPECT_EQ(basis.rank, std::min(64, basis.key_dim));
    EXPECT_EQ(basis.layers, config.layers);
    const auto half = calibrate(*model.weights, *model.backend, tokens, basis.key_dim / 4 * 2, kSilent);
    ASSERT_TRUE(half.ok());
    EXPECT_GT(mean_of(half.value().captured), 0.5);  // as much as directions by chance would
    EXPECT_LT(mean_of(half.value().captured), 1.0);
  }
}

TEST(Calibration, BadInputIsRefused) {
  const auto model = load(fixture("tiny-llama"), 1);
  const auto failure = [&](std::span<const std::int32_t> tokens, std::optional<std::int64_t> rank) {
    const auto made = calibrate(*model.weights, *model.backend, tokens, rank, kSilent);
    EXPECT_FALSE(made.ok());
    return made.ok() ? Error{} : made.error();
  };
  auto tokens = random_tokens(300, 512);
  for (const std::int64_t rank : {-2LL, 0LL, 3LL, 18LL, 1LL << 33}) {
    EXPECT_EQ(failure(tokens, rank).param, "--index-rank") << rank;
  }
  EXPECT_NE(failure(std::span(tokens).first(255), 4).message.find("at least 256"), std::string::npos);
  for (const std::int32_t outside : {-1, 512}) {
    tokens[200] = outside;
    EXPECT_NE(failure(tokens, 4).message.find("embedding"), std::string::npos);
  }
}

TEST(Calibration, TheDefaultModel) {
  const char* given = std::getenv("HOTSET_DEFAULT_MODEL");
  const fs::path path = given != nullptr ? given : HOTSET_DEFAULT_MODEL;
  if (!fs::exists(path)) GTEST_SKIP() << "the default model is not there: ./run prepare fetches it";
  const auto model = load(path, 2);
  const auto tokenizer = load_tokenizer_json(read_text_file(HOTSET_SMOLLM2_TOKENIZER, 1 << 26).value(), {});
  const auto tokens = tokenizer.value()->encode(calibration_text(), {.parse_special = false}).value();
  const auto start = std::chrono::steady_clock::now();
  const auto made = calibrate(*model.weights, *model.backend, tokens, std::nullopt, kSilent);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(made.ok()) << made.error().message;
  const double mean = mean_of(made.value().captured);
  std::printf("%lld tokens in %.1f s with 2 threads, rank %d: captured share %.3f\n",
              static_cast<long long>(made.value().tokens), seconds.count(), made.value().basis.rank, mean);
  EXPECT_EQ(made.value().basis.rank, 16);
  EXPECT_EQ(made.value().tokens, static_cast<std::int64_t>(tokens.size()));
  EXPECT_GT(mean, 0.75);

  // Twice, of a part: the whole text would only take longer.
  const auto part = std::span(tokens).first(512);
  const auto once = calibrate(*model.weights, *model.backend, part, std::nullopt, kSilent);
  const auto again = calibrate(*model.weights, *model.backend, part, std::nullopt, kSilent);
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(once.value().basis.hash, again.value().basis.hash);
  EXPECT_NE(once.value().basis.hash, made.value().basis.hash);
}

}  // namespace
}  // namespace hotset::model
