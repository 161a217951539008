// A Hugging Face folder (config.json, safetensors, tokenizer files) as a checkpoint.
#pragma once

#include <filesystem>

#include "core/result.h"
#include "model/checkpoint.h"

namespace hotset::model {

// `weights`: the one file to read; empty: model.safetensors of the folder, or the shards that its index names. Shards
// that the index does not name are left alone. Not validated yet: open_checkpoint() does that. Errors as there.
Result<CheckpointContents> read_safetensors_checkpoint(const std::filesystem::path& folder,
                                                       const std::filesystem::path& weights);

// config.json of the folder and, where there is one, generation_config.json. Errors: kNotFound, and
// parse_hf_config()'s.
Result<ModelConfig> read_folder_config(const std::filesystem::path& folder);

}  // namespace hotset::model
