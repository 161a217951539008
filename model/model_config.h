// What a checkpoint says about the shape of its model, the same for every file format. Plain values, no owner, no
// thread. A ModelConfig that came out of a parser (model/hf_config.h, model/gguf_config.h) has passed
// check_model_config().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace hotset::model {

// All four are the same decoder (RMSNorm, GQA with RoPE, SiLU-gated MLP); they differ in the flags below.
enum class Architecture { kLlama, kMistral, kQwen2, kQwen3 };

[[nodiscard]] std::string_view architecture_name(Architecture architecture);  // as in config.json: "llama", "qwen2"

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

// Parameters of model/rope.h. Each group is meaningful for its type only.
struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1.0;                     // linear, llama3, yarn; >= 1
  double original_max_positions = 0.0;     // llama3, yarn; the length the model was trained for; > 0
  double low_freq_factor = 1.0;            // llama3; > 0
  double high_freq_factor = 4.0;           // llama3; > low_freq_factor
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn; beta_fast >= beta_slow > 0
  bool truncate = true;                    // yarn; correction range rounded to whole channels
  std::optional<double> attention_factor;  // yarn; overrides the two below
  std::optional<double> mscale;            // yarn
  std::optional<double> mscale_all_dim;    // yarn
  std::vector<float> frequency_divisors;   // [rotary_dim / 2] or empty; GGUF's rope_freqs.weight, any type
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // general.name of a GGUF; of a folder its last component; may be empty
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;    // divides heads
  std::int32_t head_dim = 0;    // even; heads * head_dim need not equal hidden
  std::int32_t rotary_dim = 0;  // channels that RoPE turns; even, <= head_dim
  double rms_epsilon = 1e-6;
  std::int64_t max_positions = 0;  // longest context the model was made for, RoPE scaling included
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool qkv_bias = false;         // q_proj, k_proj and v_proj have a bias
  bool o_bias = false;           // o_proj has a bias
  bool mlp_bias = false;         // gate_proj, up_proj and down_proj have a bias
  bool qk_norm = false;          // RMSNorm of each head of Q and K before RoPE: q_norm and k_norm, [head_dim]
  bool tied_embeddings = false;  // the output matrix is embed_tokens
  std::optional<std::int32_t> bos_token;
  std::vector<std::int32_t> eos_tokens;  // each ends generation; no duplicates; may be empty
};

// Every number within its range and consistent with the others, so that products of two of them fit 64 bits and of
// their squares too. The error names the option with the spelling of config.json.
Result<void> check_model_config(const ModelConfig& config);

}  // namespace hotset::model
