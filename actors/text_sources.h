// The tokenizer and the chat template of a checkpoint.
#pragma once

#include <memory>
#include <string>

#include "actors/prompt_encoder.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/result.h"
#include "model/checkpoint.h"
#include "model/tokenizer/tokenizer.h"

namespace hotset::actors {

// Errors: kNotFound (the checkpoint has none), kInvalidArgument (of a kind that is not supported), kCorrupt.
Result<std::shared_ptr<const model::Tokenizer>> load_tokenizer(const model::TokenizerSource& source);

// `vocabulary` of the result is left to the caller. A tokenizer or template of an unsupported kind is a warning in the
// log, and the server answers token ids only, or refuses chat. Errors: a damaged tokenizer; a --chat-template that
// can't be read.
Result<PromptEncoderParts> load_text_parts(const model::TokenizerSource& source, const ServerConfig& config,
                                           std::shared_ptr<const Clock> clock);

}  // namespace hotset::actors
