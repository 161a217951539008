// A latent model of odd widths that no fixture has.
#pragma once

#include "model/model_config.h"

namespace hotset::model {

inline ModelConfig small_latent_config() {
  ModelConfig config{.architecture = Architecture::kDeepseekV2,
                     .vocabulary = 40,
                     .hidden = 32,
                     .intermediate = 24,
                     .layers = 3,
                     .heads = 3,
                     .kv_heads = 3,
                     .head_dim = 20,
                     .rotary_dim = 8,
                     .max_positions = 4096};
  config.latent = {.q_rank = 14, .kv_rank = 16, .nope_dim = 12, .rope_dim = 8, .value_dim = 10};
  return config;
}

inline ExpertsConfig small_experts() {
  return {.count = 12, .per_token = 3, .intermediate = 20, .shared = 2, .sparse_layer = {false, true, true}};
}

}  // namespace hotset::model
