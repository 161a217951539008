// The steps of a tokenizer.json: normalizer, pre_tokenizer, decoder, post_processor. What can't be read is reported to
// the object's JsonErrors.
#pragma once

#include "model/tokenizer/json_fields.h"
#include "model/tokenizer/tokenizer_draft.h"

namespace hotset::model {

// GPT-2's pattern, which the step "ByteLevel" applies.
inline constexpr std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void read_normalizer(const JsonObject& step, Normalizer& out);
void read_pre_tokenizer(const JsonObject& step, PreTokenizer& out);
// Fills decoder and leading_strip.
void read_decoder(const JsonObject& step, TokenizerDraft& out);
// Fills prefix and suffix.
void read_post_processor(const JsonObject& step, TokenizerDraft& out);

}  // namespace hotset::model
