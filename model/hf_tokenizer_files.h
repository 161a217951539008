// The tokenizer's files of a Hugging Face folder.
#pragma once

#include <filesystem>

#include "core/result.h"
#include "model/checkpoint.h"

namespace hotset::model {

// tokenizer.json (its path only), tokenizer_config.json, chat_template.jinja; each may be absent. The template file
// wins over tokenizer_config.json's own; of a list of templates the one named "default" is taken. Errors: kCorrupt for
// a file that breaks its format.
Result<TokenizerSource> read_hf_tokenizer_files(const std::filesystem::path& folder);

}  // namespace hotset::model
