// ModelConfig out of a GGUF file's metadata and tensor table.
#pragma once

#include "core/result.h"
#include "model/gguf_reader.h"
#include "model/model_config.h"

namespace hotset::model {

// Mistral's files say "llama" and are read as such: the same computation.
// Errors: as parse_hf_config (model/hf_config.h); an option is named as in the file, "llama.expert_count".
Result<ModelConfig> parse_gguf_config(const GgufFile& file);

}  // namespace hotset::model
