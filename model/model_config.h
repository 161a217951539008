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

// The first four are one decoder (RMSNorm, grouped-query attention with RoPE, SiLU-gated MLP) with different flags, the
// others another one (latent attention, experts, an indexer of their own): `latent`, `experts` and `indexer` below.
enum class Architecture { kLlama, kMistral, kQwen2, kQwen3, kDeepseekV2, kDeepseekV3, kDeepseekV32, kGlmMoeDsa };

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

constexpr std::int32_t kMaxLayers = 1024;

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): the cached row is a latent of all heads and
// one key part that RoPE turns.
struct LatentConfig {
  std::int32_t q_rank = 0;     // q_lora_rank; 0: q_proj directly
  std::int32_t kv_rank = 0;    // kv_lora_rank; a multiple of 16
  std::int32_t nope_dim = 0;   // qk_nope_head_dim
  std::int32_t rope_dim = 0;   // qk_rope_head_dim; even
  std::int32_t value_dim = 0;  // v_head_dim
  // The file's rope channels are paired (0, 1), (2, 3), ...; else half-split. model/checkpoint.h hands out half-split
  // rows either way.
  bool interleaved_rope = true;
};

// Mixture of experts: the router's scores choose `per_token` of `count` experts for each token.
struct ExpertsConfig {
  enum class Router { kSigmoid, kSoftmax };
  // What ranks the groups of experts, of which `top_groups` stay: the sum of their two best scores, the best one.
  enum class GroupScore { kTopTwoSum, kBest };
  std::int32_t count = 0;       // n_routed_experts
  std::int32_t per_token = 0;   // num_experts_per_tok
  std::int32_t groups = 1;      // n_group; divides count
  std::int32_t top_groups = 1;  // topk_group
  GroupScore group_score = GroupScore::kTopTwoSum;
  Router router = Router::kSigmoid;
  bool correction_bias = false;    // e_score_correction_bias is added for the choice, not for the weight
  bool normalised = true;          // norm_topk_prob: the chosen scores are divided by their sum
  double scaling_factor = 1.0;     // routed_scaling_factor
  std::int64_t intermediate = 0;   // moe_intermediate_size, of one expert
  std::int32_t shared = 0;         // n_shared_experts: one MLP of shared * intermediate, 0: none
  std::vector<bool> sparse_layer;  // [layers]: experts; false: a dense MLP
};

// The lightning indexer of DeepSeek sparse attention (DeepSeek-V3.2).
struct IndexerConfig {
  std::int32_t heads = 0;         // index_n_heads
  std::int32_t dim = 0;           // index_head_dim; a multiple of 16, >= the latent's rope_dim
  std::int32_t top_k = 0;         // index_topk
  bool interleaved_rope = false;  // as in LatentConfig
  std::vector<bool> full_layer;   // [layers]: has an indexer of its own; false: uses the last full layer's selection
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // general.name of a GGUF; of a folder its last component; may be empty
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;    // divides heads; latent: equals heads
  std::int32_t head_dim = 0;    // even; heads * head_dim need not equal hidden; latent: nope_dim + rope_dim
  std::int32_t rotary_dim = 0;  // channels that RoPE turns; even, <= head_dim; latent: rope_dim
  double rms_epsilon = 1e-6;
  std::int64_t max_positions = 0;  // longest context the model was made for, RoPE scaling included
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool qkv_bias = false;                 // q_proj, k_proj and v_proj have a bias
  bool o_bias = false;                   // o_proj has a bias
  bool mlp_bias = false;                 // gate_proj, up_proj and down_proj have a bias
  bool qk_norm = false;                  // RMSNorm of each head of Q and K before RoPE: q_norm and k_norm, [head_dim]
  std::optional<LatentConfig> latent;    // null: grouped-query attention
  std::optional<ExpertsConfig> experts;  // null: every layer has a dense MLP
  std::optional<IndexerConfig> indexer;  // null: no selection of the model's own; only with `latent`
  std::int32_t mtp_layers = 0;   // num_nextn_predict_layers: behind `layers` in the file, for drafts; not loaded
  bool tied_embeddings = false;  // the output matrix is embed_tokens
  bool fp8_weights = false;      // matrices are stored in E4M3 with a scale for each 128 x 128, all or some
  std::optional<std::int32_t> bos_token;
  std::vector<std::int32_t> eos_tokens;  // each ends generation; no duplicates; may be empty
};

// Every number within its range and consistent with the others, so that products of two of them fit 64 bits and of
// their squares too. The error names the option with the spelling of config.json.
Result<void> check_model_config(const ModelConfig& config);

}  // namespace hotset::model
