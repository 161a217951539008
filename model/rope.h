// Rotary frequencies of a model. The formulas are those of transformers' modeling_rope_utils.py (5.x: default, linear,
// llama3, yarn), which follow the papers of RoPE (arXiv 2104.09864) and YaRN (arXiv 2309.00071) and Meta's Llama 3.1
// code.
#pragma once

#include <vector>

#include "model/model_config.h"

namespace hotset::model {

// What kernels::RopeParams takes.
struct RopeTable {
  std::vector<float> inv_freq;    // [rotary_dim / 2], computed in double
  float attention_factor = 1.0F;  // multiplies cos and sin of both Q and K
};

// `config` has passed check_model_config().
[[nodiscard]] RopeTable make_rope(const ModelConfig& config);

// What multiplies the products of Q and K before the softmax: head_dim^-0.5. With latent attention and a yarn that has
// mscale_all_dim it is that times (0.1 mscale_all_dim ln(factor) + 1)^2, as DeepSeek's code has it for V2 too, where
// transformers' port leaves it out. (RopeTable's attention_factor comes on top in either case.)
[[nodiscard]] double attention_scale(const ModelConfig& config);

}  // namespace hotset::model
