#include "actors/selection_setup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "actors/serving_engine.h"

namespace hotset::actors {
namespace {

constexpr EngineLimits kLimits{.selected_blocks = 4096, .hot_blocks = 16384, .index_rank = 256};

model::ModelConfig wide_model() {
  model::ModelConfig model;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 512;
  model.max_positions = 1 << 20;
  return model;
}

model::ModelConfig indexed_model(std::int32_t top_k) {
  model::ModelConfig model = wide_model();
  model.kv_heads = 4;
  model.head_dim = 192;
  model.latent = model::LatentConfig{.q_rank = 64, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  model.indexer = model::IndexerConfig{.heads = 4, .dim = 128, .top_k = top_k, .full_layer = {true, true}};
  return model;
}

Result<SelectionMenu> menu_of(const ServerConfig& config, const model::ModelConfig& model,
                              const EngineLimits& limits = kLimits) {
  const auto selection = expected_selection(config.algorithm, config, model);
  if (!selection) return selection.error();
  return make_selection_menu(config, selection.value(), limits);
}

ServerConfig config_of(const char* algorithm, const std::function<void(ServerConfig&)>& change) {
  ServerConfig config{.algorithm = algorithm};
  change(config);
  return config;
}

// Every option that leads to a size that a device's kernels have a limit for, at the limit and beyond.
TEST(SelectionMenuOfADevice, RefusesSizesByTheOptionThatMadeThem) {
  struct Case {
    const char* algorithm;
    const char* param;
    std::function<void(ServerConfig&)> fits, beyond;
  };
  const Case cases[] = {
      {"lowrank", "--sparse-budget", [](auto& config) { config.sparse_budget = 4096; },
       [](auto& config) { config.sparse_budget = 4097; }},
      {"quest", "--sparse-budget", [](auto& config) { config.sparse_budget = 4096 * 16; },
       [](auto& config) { config.sparse_budget = 4097 * 16; }},
      // The first block and those that overlap the window.
      {"streaming", "--sparse-window",
       [](auto& config) {
         config.sparse_block = 1;
         config.sparse_window = 4095;
       },
       [](auto& config) {
         config.sparse_block = 1;
         config.sparse_window = 4096;
       }},
      {"lowrank", "--hot-buffer", [](auto& config) { config.hot_buffer = 16384; },
       [](auto& config) { config.hot_buffer = 16385; }},
      {"quest", "--hot-buffer", [](auto& config) { config.hot_buffer = 16384 * 16; },
       [](auto& config) { config.hot_buffer = 16385 * 16; }},
      {"lowrank", "--index-rank", [](auto& config) { config.index_rank = 256; },
       [](auto& config) { config.index_rank = 258; }},
      {"lowrank", "--index-rank", [](auto& config) { config.index_rank = 2; },
       [](auto& config) { config.index_rank = 3; }},
  };
  for (const Case& one : cases) {
    const auto fits = menu_of(config_of(one.algorithm, one.fits), wide_model());
    EXPECT_TRUE(fits.ok()) << one.algorithm << ": " << (fits.ok() ? "" : fits.error().message);
    const auto beyond = menu_of(config_of(one.algorithm, one.beyond), wide_model());
    ASSERT_FALSE(beyond.ok()) << one.algorithm << ", " << one.param;
    EXPECT_EQ(beyond.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(beyond.error().param, one.param) << beyond.error().message;
    EXPECT_TRUE(beyond.error().message.starts_with(one.param)) << beyond.error().message;
  }
}

TEST(SelectionMenuOfADevice, RefusesTheSelectionsOfAModel) {
  const ServerConfig config{.algorithm = "dsa"};
  EXPECT_TRUE(menu_of(config, indexed_model(4096)).ok());
  const auto beyond = menu_of(config, indexed_model(8192));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().param, "--kv-mode") << beyond.error().message;
  EXPECT_NE(beyond.error().message.find("dsa selects 8192 blocks"), std::string::npos) << beyond.error().message;
}

// The limits are those of hot sequences: without any, selections may be as large as they like.
TEST(SelectionMenuOfADevice, HasNoLimitOfSelectionsWhereNothingIsHot) {
  const auto resident = [](ServerConfig& config) {
    config.sparse_budget = 8192;
    config.kv_mode = KvModeChoice::kResident;
  };
  EXPECT_TRUE(menu_of(config_of("lowrank", resident), wide_model()).ok());
  EXPECT_TRUE(menu_of(ServerConfig{.kv_mode = KvModeChoice::kResident, .algorithm = "dsa"}, indexed_model(8192)).ok());
  const auto unlimited = [](ServerConfig& config) { config.sparse_budget = 100'000; };
  EXPECT_TRUE(menu_of(config_of("lowrank", unlimited), wide_model(), EngineLimits{}).ok());
}

TEST(SelectionMenuOfADevice, OffersNoStreamingBeyondTheLimits) {
  const auto offered = [](std::int64_t window) {
    const auto menu = menu_of(config_of("lowrank",
                                        [&](ServerConfig& config) {
                                          config.sparse_block = 1;
                                          config.sparse_budget = 4096;
                                          config.sparse_sink = 0;
                                          config.sparse_window = window;
                                        }),
                              wide_model());
    EXPECT_TRUE(menu.ok());
    return menu.value().resolve("streaming", std::nullopt).ok();
  };
  EXPECT_TRUE(offered(4095));
  EXPECT_FALSE(offered(4096));
}

// A request's own budget is never more than the server's, and its buffer never larger.
TEST(SelectionMenuOfADevice, KeepsRequestsInsideItsLimits) {
  const auto largest = [](ServerConfig& config) {
    config.sparse_budget = 4096;
    config.hot_buffer = 16384;
  };
  const auto menu = menu_of(config_of("lowrank", largest), wide_model());
  ASSERT_TRUE(menu.ok());
  for (const std::int64_t budget : {68, 69, 1000, 4095, 4096}) {
    const auto policy = menu.value().resolve("lowrank", budget);
    ASSERT_TRUE(policy.ok()) << budget;
    EXPECT_EQ(policy.value()->selection.budget_blocks(), budget);
    EXPECT_LE(policy.value()->hot_shape.hot_blocks, kLimits.hot_blocks);
    EXPECT_GE(policy.value()->hot_shape.hot_blocks, budget);
  }
  EXPECT_FALSE(menu.value().resolve("lowrank", 4097).ok());
}

// A server whose sequences all stay resident plans no hot buffers; selections are as long.
TEST(EngineRequestOfAMenu, HasTheLargestOfAllPolicies) {
  ServerConfig config{.algorithm = "lowrank", .sparse_budget = 1000};
  const auto menu = menu_of(config, wide_model());
  ASSERT_TRUE(menu.ok());
  const EngineRequest request = engine_request(config, KvLayout{}, 4096, menu.value());
  EXPECT_GE(request.largest_hot.hot_blocks, 2000);
  EXPECT_GE(request.largest_hot.ring_tokens, 128);
  EXPECT_GE(request.max_selected, 1000);
  config.kv_mode = KvModeChoice::kResident;
  const EngineRequest resident = engine_request(config, KvLayout{}, 4096, menu.value());
  EXPECT_EQ(resident.largest_hot.hot_blocks, 0);
  EXPECT_EQ(resident.largest_hot.ring_tokens, 0);
  EXPECT_EQ(resident.max_selected, request.max_selected);
  EXPECT_EQ(resident.max_context, 4096);
}

// What is known before the weights are read is what the server will run with.
TEST(ExpectedSelection, HasTheShapesOfTheRealOne) {
  const ServerConfig config{.algorithm = "lowrank", .index_rank = 32};
  const auto expected = expected_selection("lowrank", config, wide_model());
  ASSERT_TRUE(expected.ok());
  const MetadataGeometry metadata = expected.value().algorithm->metadata();
  EXPECT_EQ(metadata.kind, MetadataGeometry::Kind::kLowRankKeys);
  EXPECT_EQ(metadata.kv_heads, 2);
  EXPECT_EQ(metadata.dim, 512);
  EXPECT_EQ(metadata.rank, 32);
  EXPECT_EQ(expected.value().budget_blocks(), 2048);
  EXPECT_EQ(expected.value().threshold, 4096);
  EXPECT_EQ(expected_selection("dense", config, wide_model()).value().algorithm, nullptr);
  EXPECT_EQ(expected_selection("dsa", config, indexed_model(64)).value().threshold, 64);
}

}  // namespace
}  // namespace hotset::actors
