// The options of config.json that the families with latent attention have (DeepSeek-V2, -V3, -V3.2, GLM-MoE-DSA):
// latent attention, experts and their router, indexer. Their meaning is that of transformers 5
// (modeling_deepseek_v2/v3/v32.py, modeling_glm_moe_dsa.py) and, where the files are older, of DeepSeek's own code.
#pragma once

#include "model/json_options.h"
#include "model/model_config.h"

namespace hotset::model {

[[nodiscard]] bool is_latent_family(Architecture architecture);

// Fills latent, experts, indexer, mtp_layers, head_dim and rotary_dim. `config` has its architecture, layers and heads.
// Errors go to `options`; ranges are left to check_model_config().
void parse_latent_family(JsonOptions& options, ModelConfig& config);

}  // namespace hotset::model
