#include "actors/prompt_reader.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "core/checked_math.h"
#include "core/concat.h"
#include "model/tokenizer/stream_decoder.h"

namespace hotset::actors {
namespace {

// Also a text that is too long for the context may be counted, up to what is read within a few seconds.
constexpr std::int64_t kCountedBytes = std::int64_t{16} << 20;

bool outside(std::int32_t token, std::int64_t vocabulary) { return token < 0 || token >= vocabulary; }

// No text of more bytes fits the context: every token stands for at most the longest token's bytes, and normalisation
// shortens a text to no less than a quarter.
std::int64_t longest_text(std::int64_t max_context, const PromptEncoder& encoder) {
  constexpr std::uint64_t kNormalisation = 4;
  const model::Tokenizer* tokenizer = encoder.tokenizer().get();
  std::uint64_t longest = 1;
  for (std::int32_t id = 0; tokenizer != nullptr && id < tokenizer->vocabulary_size(); ++id) {
    longest = std::max<std::uint64_t>(longest, tokenizer->token_bytes(id).size());
  }
  const auto bytes = checked_mul(static_cast<std::uint64_t>(max_context), longest * kNormalisation);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(bytes.value_or(kMost), kMost));
}

}  // namespace

PromptReader::PromptReader(GatewayConfig config, std::shared_ptr<const PromptEncoder> encoder)
    : config_(std::move(config)),
      encoder_(std::move(encoder)),
      limit_{.bytes = longest_text(config_.max_context, *encoder_), .context = config_.max_context} {}

Result<void> PromptReader::in_time() const {
  if (config_.too_late == nullptr || !*config_.too_late) return {};
  return Error{ErrorCode::kUnavailable, "the server is shutting down", {}};
}

Result<void> PromptReader::check(const GenerationRequest& request) const {
  const std::int64_t vocabulary = encoder_->vocabulary();
  const auto bad = [&](const char* field) {
    return invalid_argument(concat("a token id is outside the vocabulary of ", vocabulary), field);
  };
  for (const std::int32_t token : request.stop_token_ids) {
    if (outside(token, vocabulary)) return bad("stop_token_ids");
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (outside(token, vocabulary)) return bad("logit_bias");
  }
  if (!request.stop.empty() && encoder_->tokenizer() == nullptr) {
    return invalid_argument("the model has no tokenizer: stop strings are not possible, use stop_token_ids", "stop");
  }
  if (request.prompts.empty()) return invalid_argument("the prompt is empty", "prompt");
  if (request.n < 1) return invalid_argument("n is at least 1", "n");
  const auto choices = static_cast<std::int64_t>(request.prompts.size()) * request.n;
  if (choices > config_.max_sequences) {
    return invalid_argument(
        concat("the request asks for ", choices, " answers at once, the server queues at most ", config_.max_sequences),
        "n");
  }
  if (request.max_tokens && *request.max_tokens < 0) return invalid_argument("max_tokens is negative", "max_tokens");
  return {};
}

Result<PromptTokens> PromptReader::read(const GenerationRequest& request) const {
  if (const Result<void> good = check(request); !good) return good.error();
  const bool scoring = request.max_tokens == 0;
  PromptTokens out;
  for (const Prompt& prompt : request.prompts) {
    if (const Result<void> good = in_time(); !good) return good.error();
    auto tokens = encoder_->encode(prompt, limit_);
    if (!tokens) return tokens.error();
    const char* field = std::holds_alternative<ChatPrompt>(prompt) ? "messages" : "prompt";
    const auto length = static_cast<std::int64_t>(tokens.value().size());
    if (length == 0) return invalid_argument("the prompt is empty", field);
    if (length + (scoring ? 0 : 1) > config_.max_context) {
      return Error{ErrorCode::kContextLengthExceeded,
                   concat("the context holds ", config_.max_context, " tokens, the prompt has ", length,
                          scoring ? "" : " and leaves no room for an answer"),
                   field};
    }
    out.push_back(std::make_shared<const std::vector<std::int32_t>>(std::move(tokens).value()));
  }
  return out;
}

Result<TokenizeResponse> PromptReader::tokenize(const TokenizeRequest& request) const {
  if (const Result<void> good = in_time(); !good) return good.error();
  TextLimit limit = limit_;
  limit.bytes = std::max(limit.bytes, kCountedBytes);
  auto tokens = encoder_->encode(request.prompt, limit);
  if (!tokens) return tokens.error();
  return TokenizeResponse{.tokens = std::move(tokens).value(), .max_model_len = config_.max_context};
}

Result<std::string> PromptReader::detokenize(const std::vector<std::int32_t>& tokens) const {
  if (const Result<void> good = in_time(); !good) return good.error();
  if (encoder_->tokenizer() == nullptr) {
    return invalid_argument("the model has no tokenizer: token ids have no text", "tokens");
  }
  for (const std::int32_t token : tokens) {
    if (outside(token, encoder_->vocabulary())) {
      return invalid_argument(concat("a token id is outside the vocabulary of ", encoder_->vocabulary()), "tokens");
    }
  }
  return model::replace_invalid_utf8(encoder_->tokenizer()->decode(tokens, false));
}

}  // namespace hotset::actors
