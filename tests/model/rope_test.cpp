// Expected values: transformers' formulas (modeling_rope_utils.py of 5.x) evaluated in Python floats.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace hotset::model {
namespace {

ModelConfig config(double theta, std::int32_t dim, RopeScaling scaling = {}) {
  ModelConfig out;
  out.head_dim = dim;
  out.rotary_dim = dim;
  out.rope_theta = theta;
  out.rope_scaling = std::move(scaling);
  return out;
}

void expect_table(const RopeTable& table, const std::vector<double>& frequencies, double attention_factor) {
  ASSERT_EQ(table.inv_freq.size(), frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    EXPECT_NEAR(table.inv_freq[i], frequencies[i], frequencies[i] * 1e-6) << i;
  }
  EXPECT_NEAR(table.attention_factor, attention_factor, 1e-6);
}

TEST(RopeTest, Default) {
  expect_table(make_rope(config(10000.0, 16)),
               {1, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766}, 1.0);
}

TEST(RopeTest, Linear) {
  RopeScaling scaling;
  scaling.type = RopeType::kLinear;
  scaling.factor = 4.0;
  expect_table(make_rope(config(10000.0, 16, scaling)),
               {0.25, 0.0790569415, 0.025, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05}, 1.0);
}

TEST(RopeTest, Llama3) {
  RopeScaling scaling;
  scaling.type = RopeType::kLlama3;
  scaling.factor = 8.0;
  scaling.original_max_positions = 128;
  scaling.low_freq_factor = 1.0;
  scaling.high_freq_factor = 4.0;
  expect_table(
      make_rope(config(500000.0, 16, scaling)),
      {1, 0.191126476, 0.00470075387, 0.000911583092, 0.000176776695, 3.4281022e-05, 6.64786987e-06, 1.28917317e-06},
      1.0);
}

TEST(RopeTest, Yarn) {
  RopeScaling scaling;
  scaling.type = RopeType::kYarn;
  scaling.factor = 4.0;
  scaling.original_max_positions = 32768;
  expect_table(
      make_rope(config(1e6, 32, scaling)),
      {1, 0.421696503, 0.177827941, 0.0749894209, 0.0316227766, 0.0133352143, 0.00477990126, 0.00165996159, 0.00055,
       0.000168678601, 4.44569853e-05, 1.87473552e-05, 7.90569415e-06, 3.33380358e-06, 1.40585331e-06, 5.92843426e-07},
      1.138629436);

  scaling.truncate = false;
  expect_table(make_rope(config(1e6, 32, scaling)),
               {1, 0.421696503, 0.177827941, 0.0749894209, 0.0316227766, 0.0133352143, 0.00551727048, 0.00188350244,
                0.000607407938, 0.000177344246, 4.44569853e-05, 1.87473552e-05, 7.90569415e-06, 3.33380358e-06,
                1.40585331e-06, 5.92843426e-07},
               1.138629436);
}

TEST(RopeTest, YarnAttentionFactor) {
  RopeScaling scaling;
  scaling.type = RopeType::kYarn;
  scaling.factor = 40.0;
  scaling.original_max_positions = 128;
  scaling.beta_fast = 16;
  scaling.beta_slow = 2;
  const std::vector<double> frequencies = {1,       0.213453742,    0.035,   0.000790569415,
                                           0.00025, 7.90569415e-05, 2.5e-05, 7.90569415e-06};
  expect_table(make_rope(config(10000.0, 16, scaling)), frequencies, 1.36888795);
  scaling.mscale = 0.707;
  expect_table(make_rope(config(10000.0, 16, scaling)), frequencies, 1.36888795);  // takes effect with both only
  scaling.mscale_all_dim = 1.0;
  expect_table(make_rope(config(10000.0, 16, scaling)), frequencies, 0.921042355);
  scaling.attention_factor = 1.25;
  expect_table(make_rope(config(10000.0, 16, scaling)), frequencies, 1.25);
}

// The numbers of tiny-deepseek-v32 and of DeepSeek-V3 in float64, by the formulas that the fixtures' oracle uses.
TEST(RopeTest, YarnOfDeepseek) {
  RopeScaling scaling;
  scaling.type = RopeType::kYarn;
  scaling.factor = 40.0;
  scaling.original_max_positions = 128;
  scaling.mscale = 1.0;
  scaling.mscale_all_dim = 1.0;
  expect_table(make_rope(config(10000.0, 16, scaling)),
               {1, 0.213453742, 0.035, 0.000790569415, 0.00025, 7.90569415e-05, 2.5e-05, 7.90569415e-06}, 1.0);
  scaling.original_max_positions = 4096;
  const auto table = make_rope(config(10000.0, 64, scaling));
  ASSERT_EQ(table.inv_freq.size(), 32U);
  const std::pair<std::size_t, double> some[] = {{0, 1},
                                                 {10, 0.0562341325},
                                                 {11, 0.0390069266},
                                                 {15, 0.00833450895},
                                                 {20, 0.000790569415},
                                                 {23, 3.33380358e-05},
                                                 {31, 3.33380358e-06}};
  for (const auto& [channel, frequency] : some) EXPECT_NEAR(table.inv_freq[channel], frequency, frequency * 1e-6);
}

TEST(RopeTest, AttentionScale) {
  RopeScaling scaling;
  scaling.type = RopeType::kYarn;
  scaling.factor = 40.0;
  scaling.original_max_positions = 4096;
  scaling.mscale_all_dim = 1.0;
  auto grouped = config(10000.0, 192, scaling);
  EXPECT_DOUBLE_EQ(attention_scale(grouped),
                   0.072168783648703216);  // no mscale in the softmax without latent attention

  auto latent = grouped;
  latent.latent = LatentConfig{.kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  EXPECT_DOUBLE_EQ(attention_scale(latent), 0.13523377886088009);  // DeepSeek-V3
  latent.rope_scaling.mscale_all_dim = 0.707;
  EXPECT_DOUBLE_EQ(attention_scale(latent), 0.11472138679292611);  // DeepSeek-V2-Lite
  latent.rope_scaling.mscale_all_dim = 0.0;
  EXPECT_DOUBLE_EQ(attention_scale(latent), 0.072168783648703216);
  latent.rope_scaling.mscale_all_dim.reset();
  EXPECT_DOUBLE_EQ(attention_scale(latent), 0.072168783648703216);
  latent.rope_scaling = {};
  EXPECT_DOUBLE_EQ(attention_scale(latent), 0.072168783648703216);
  latent.rope_scaling = scaling;
  latent.head_dim = 48;
  EXPECT_DOUBLE_EQ(attention_scale(latent), 0.27046755772176018);  // tiny-deepseek-v32
}

TEST(RopeTest, DivisorsOfTheFile) {
  RopeScaling scaling;
  scaling.frequency_divisors = {1, 1, 2, 4, 8, 8, 8, 8};
  expect_table(make_rope(config(10000.0, 16, scaling)),
               {1, 0.316227766, 0.05, 0.00790569415, 0.00125, 0.00316227766 / 8, 0.000125, 0.000316227766 / 8}, 1.0);
}

}  // namespace
}  // namespace hotset::model
