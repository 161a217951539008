// config.json and generation_config.json of a Hugging Face checkpoint, old spelling (rope_theta + rope_scaling,
// torch_dtype) and new (rope_parameters, dtype).
#pragma once

#include <string_view>

#include "core/result.h"
#include "model/model_config.h"

namespace hotset::model {

// `config_json`: text of config.json. `generation_json`: text of generation_config.json or empty; its bos and eos ids
// win over those of config.json. Errors: kCorrupt for broken JSON or a value of the wrong type; kInvalidArgument for an
// architecture or an option that is not supported, by name. An option that nobody knows is refused too when its value
// could change the computation (a number, true, a list or an object), because a checkpoint is never half-understood.
Result<ModelConfig> parse_hf_config(std::string_view config_json, std::string_view generation_json = {});

}  // namespace hotset::model
