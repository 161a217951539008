// The tokenizer and the chat template of a checkpoint.
#pragma once

#include <memory>
#include <string>

#include "actors/prompt_encoder.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/result.h"
#include "model/checkpoint.h"

namespace hotset::actors {

// `vocabulary` of the result is left to the caller. A tokenizer or template of an unsupported kind is a warning in the
// log, and the server answers token ids only, or refuses chat. Errors: a damaged tokenizer; a --chat-template that
// can't be read.
Result<PromptEncoderParts> load_text_parts(const model::TokenizerSource& source, const ServerConfig& config,
                                           std::shared_ptr<const Clock> clock);

}  // namespace hotset::actors
