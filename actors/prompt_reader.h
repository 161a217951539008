// Turns what a client sent into token ids: checks a request, encodes its prompts, answers /tokenize and /detokenize.
// The plain class behind PromptReader; encoding megabytes takes seconds, so it runs beside the Gateway, never in it.
// Thread: immutable after construction, but for GatewayConfig::too_late, which any thread may set.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/prompt_encoder.h"
#include "actors/requests.h"
#include "core/result.h"

namespace hotset::actors {

struct GatewayConfig {
  std::int64_t max_context = 0;    // tokens: prompt + output
  std::int64_t max_sequences = 0;  // choices of one request; more could never be queued
  std::vector<std::int32_t> eos_tokens;
  // Set once the server's drain time is over: what still waits to be read is refused. Null: never.
  std::shared_ptr<const std::atomic<bool>> too_late;
};

// Token ids of each prompt of a request.
using PromptTokens = std::vector<std::shared_ptr<const std::vector<std::int32_t>>>;

class PromptReader {
 public:
  PromptReader(GatewayConfig config, std::shared_ptr<const PromptEncoder> encoder);

  // kInvalidArgument names the field; kContextLengthExceeded for prompts that leave no room for a token (with
  // max_tokens 0: that are longer than the context). Like the others: kUnavailable when it is too late.
  [[nodiscard]] Result<PromptTokens> read(const GenerationRequest& request) const;

  // Of any text that read() would encode, and of up to 16 MiB; kContextLengthExceeded beyond.
  [[nodiscard]] Result<TokenizeResponse> tokenize(const TokenizeRequest& request) const;
  [[nodiscard]] Result<std::string> detokenize(const std::vector<std::int32_t>& tokens) const;

 private:
  [[nodiscard]] Result<void> in_time() const;
  [[nodiscard]] Result<void> check(const GenerationRequest& request) const;

  GatewayConfig config_;
  std::shared_ptr<const PromptEncoder> encoder_;
  TextLimit limit_;
};

}  // namespace hotset::actors
