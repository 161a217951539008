// A GGUF file of the Llama-like families as a checkpoint.
#pragma once

#include <filesystem>

#include "core/result.h"
#include "model/checkpoint.h"

namespace hotset::model {

// Not validated yet: open_checkpoint() does that. Errors as there.
Result<CheckpointContents> read_gguf_checkpoint(const std::filesystem::path& path);

}  // namespace hotset::model
