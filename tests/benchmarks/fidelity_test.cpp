// The fidelity benchmark measures what it says: its dense loss is the prompt's own, selections of everything cost
// nothing, and neither neighbours in the batch nor the packed metadata change a result.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "benchmarks/fidelity_engine.h"
#include "benchmarks/fidelity_text.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/index_basis_file.h"
#include "model/kv_layout.h"
#include "model/weights.h"
#include "sparse/low_rank.h"
#include "sparse/quest.h"

namespace hotset::fidelity {
namespace {

constexpr std::int64_t kTokens = 256;
const std::string kModel = HOTSET_FIXTURES "/tiny-llama";

std::vector<std::int32_t> make_tokens() {
  std::mt19937 random(7);
  std::vector<std::int32_t> tokens(kTokens);
  for (auto& token : tokens) token = static_cast<std::int32_t>(2 + random() % 500);
  return tokens;
}

Algorithm low_rank(std::int64_t most) {
  const auto checkpoint = model::open_checkpoint(kModel);
  auto basis = model::read_index_basis(kModel + "/index_basis.safetensors",
                                       model::kv_geometry_of(checkpoint.value()->config(), KvDType::kF32));
  return sparse::make_low_rank({.sink = 4,
                                .window = 16,
                                .budget = most,
                                .basis = std::make_shared<const sparse::IndexBasis>(std::move(basis).value())})
      .value();
}

Algorithm quest(std::int64_t most) {
  return sparse::make_quest({.block_tokens = 8, .window = 16, .budget = most, .kv_heads = 2, .key_dim = 16}).value();
}

Engine make_engine(std::vector<Configuration> configurations) {
  const auto checkpoint = model::open_checkpoint(kModel);
  auto backend = kernels::make_cpu_backend(1);
  auto weights = model::load_weights(*checkpoint.value(), *backend);
  return {std::move(weights).value(),
          std::move(backend),
          std::move(configurations),
          {.tokens = kTokens, .pool_tokens = 8 * kTokens, .batch = 8, .mass_every = 8}};
}

TEST(FidelityTest, DenseRowsLoseWhatThePromptLoses) {
  const TextResult result =
      measure_text(*std::make_unique<Engine>(make_engine({{.name = "dense"}})), make_tokens(), {});
  EXPECT_EQ(result.scored, kTokens / 2 - 1);
  EXPECT_GT(result.dense_nll, 1);
  EXPECT_NEAR(result.losses.at(0).nll, result.dense_nll, 1e-5);
  EXPECT_TRUE(std::isnan(result.losses.at(0).mass));
}

TEST(FidelityTest, SelectionsOfEverythingAreExactlyDense) {
  Engine engine = make_engine({{.name = "dense"},
                               {.name = "lowrank", .algorithm = low_rank(kTokens), .budget = kTokens},
                               {.name = "quest", .algorithm = quest(kTokens), .budget = kTokens / 8},
                               {.name = "streaming", .algorithm = sparse::make_streaming(16, kTokens).value()}});
  const TextResult result = measure_text(engine, make_tokens(), {});
  for (std::size_t i = 1; i < result.losses.size(); ++i) {
    EXPECT_EQ(result.losses[i].nll, result.losses[0].nll) << engine.configurations()[i].name;
    EXPECT_NEAR(result.losses[i].mass, 1, 1e-9);
  }
}

TEST(FidelityTest, ARowsResultDoesNotDependOnItsNeighbours) {
  const auto lowrank = low_rank(kTokens), blocks = quest(kTokens);
  const Configuration small{.name = "lowrank", .algorithm = lowrank, .budget = 32};
  const Configuration large{.name = "lowrank", .algorithm = lowrank, .budget = 96};
  const Configuration bounds{.name = "quest", .algorithm = blocks, .budget = 6};
  const Configuration window{.name = "streaming", .algorithm = sparse::make_streaming(16, 32).value()};
  const auto tokens = make_tokens();
  Engine all = make_engine({bounds, window, small, large});
  const TextResult together = measure_text(all, tokens, {});
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<Configuration> list{bounds, window, small, large};
    Engine one = make_engine({list[i]});
    const TextResult alone = measure_text(one, tokens, {});
    EXPECT_EQ(alone.losses[0].nll, together.losses[i].nll) << list[i].name;
    EXPECT_EQ(alone.losses[0].mass, together.losses[i].mass) << list[i].name;
    EXPECT_NE(together.losses[i].nll, together.dense_nll);
  }
  EXPECT_LT(together.losses[2].mass, together.losses[3].mass);
  EXPECT_LT(together.losses[3].mass, 1);
}

// One head, two pages, keys and query made by hand.
TEST(FidelityTest, MassIsTheSelectionsShareOfTheSoftmax) {
  const KvGeometry geometry{.layers = 1, .kv_heads = 1, .key_dim = 4, .value_dim = 4};
  std::vector<float> pool(static_cast<std::size_t>(3 * geometry.page_bytes() / 4));
  sparse::SequenceKv kv;
  kv.id = SequenceId{1};
  kv.device_pages = {{PageId{2}, PageId{0}}};
  const std::vector<float> q{1, 2, 0, 0};
  std::vector<double> weights;
  double all = 0;
  for (std::int64_t at = 0; at < 96; ++at) {
    const std::int64_t slot = (at < 64 ? 128 : 0) + at % 64;
    const auto key = static_cast<float>(at % 7) / 4.0F;
    pool[static_cast<std::size_t>(slot * 8 + 1)] = key;
    weights.push_back(std::exp(0.5 * 2 * key));
    all += weights.back();
  }
  MassMeter meter(geometry, reinterpret_cast<const std::byte*>(pool.data()), 96);
  meter.watch(kv);
  const sparse::SelectionRow row{.sequence = kv.id, .query_row = 0, .length = 96, .budget = 2, .pages = {}};
  const std::vector<std::int32_t> blocks{1, 11};
  meter.measure(LayerId{0}, row, {.q = q.data(), .q_stride = 4, .heads = 1, .scale = 0.5F}, blocks, 8);
  double selected = 0;
  for (std::size_t i = 0; i < 8; ++i) selected += weights[8 + i] + weights[88 + i];
  EXPECT_NEAR(meter.mean(kv.id), selected / all, 1e-6);
}

}  // namespace
}  // namespace hotset::fidelity
