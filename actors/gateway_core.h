// The plain class behind Gateway: open requests from their check to their last event. It owns no thread and no actor;
// what has to be sent is returned. Thread: one owner. Time comes in as arguments (Clock::steady_ns).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/choice_text.h"
#include "actors/open_requests.h"
#include "actors/prompt_encoder.h"
#include "actors/requests.h"
#include "actors/wire_messages.h"
#include "core/metrics.h"
#include "core/result.h"

namespace hotset::actors {

struct GatewayConfig {
  std::int64_t max_context = 0;    // tokens: prompt + output
  std::int64_t max_sequences = 0;  // choices of one request; more could never be queued
  std::vector<std::int32_t> eos_tokens;
};

struct GatewayMetrics {
  explicit GatewayMetrics(MetricsRegistry& registry);
  Counter& requests;
  Counter& refused;
  Counter& cancelled;
  Counter& prompt_tokens;
  Counter& generated_tokens;
  Histogram& first_token_seconds;
  Histogram& inter_token_seconds;
};

// The seed of sample `sample` of a request: samples differ, and a prompt's samples do not depend on its neighbours.
[[nodiscard]] std::uint64_t sample_seed(std::uint64_t seed, std::int32_t sample);

class GatewayCore {
 public:
  using Sequences = std::vector<std::uint64_t>;

  // `open`, `metrics` and the encoder's parts outlive the core.
  GatewayCore(const GatewayConfig& config, std::shared_ptr<const PromptEncoder> encoder, OpenRequests& open,
              GatewayMetrics& metrics);

  // Checks the request and expands it to prompts x n sequences. nullopt: refused, its sink heard why (or it was
  // cancelled before). Prompts that leave no room for a token are refused; max_tokens beyond the context is clipped to
  // the room that is left, and the answer ends with `length`.
  std::optional<SubmitSequences> open(RequestHandle handle, std::shared_ptr<const GenerationRequest> request,
                                      std::int64_t arrived_ns);
  // The engine's answer. Sequences to cancel: the client went away meanwhile.
  void accepted(RequestHandle handle);
  void refused(RequestHandle handle, Error error);

  // Each of these returns the sequences that the engine has to cancel.
  Sequences outputs(StepOutputs step, std::int64_t now_ns);
  Sequences cancel(RequestHandle handle);
  Sequences fail_all(const Error& error);

  [[nodiscard]] Result<TokenizeResponse> tokenize(const TokenizeRequest& request) const;
  [[nodiscard]] Result<std::string> detokenize(const std::vector<std::int32_t>& tokens) const;

  [[nodiscard]] std::size_t open_requests() const { return requests_.size(); }

 private:
  using Tokens = std::shared_ptr<const std::vector<std::int32_t>>;
  struct OpenRequest {
    std::shared_ptr<const GenerationRequest> request;
    std::vector<Tokens> prompts;
    std::vector<ChoiceText> choices;       // prompt * n + sample
    Sequences sequences;                   // of the choices
    std::vector<std::int64_t> last_token;  // ns of each choice's newest token; 0: none yet
    std::int64_t arrived_ns = 0;
    std::size_t unfinished = 0;
  };
  struct Place {
    RequestHandle handle = 0;
    std::size_t choice = 0;
  };

  [[nodiscard]] Result<void> check(const GenerationRequest& request) const;
  [[nodiscard]] Result<OpenRequest> expand(std::shared_ptr<const GenerationRequest> request) const;
  [[nodiscard]] SubmitSequences submission(OpenRequest& open);
  void output(SequenceOutput& one, std::int64_t now_ns, Sequences& cancels);
  void note_tokens(OpenRequest& open, std::size_t choice, std::size_t tokens, std::int64_t now_ns);
  void finish(RequestHandle handle, OpenRequest& open);
  Sequences drop(RequestHandle handle);

  GatewayConfig config_;
  std::shared_ptr<const PromptEncoder> encoder_;
  OpenRequests& open_;
  GatewayMetrics& metrics_;
  std::uint64_t next_sequence_ = 1;
  std::unordered_map<RequestHandle, OpenRequest> requests_;
  std::unordered_map<std::uint64_t, Place> places_;  // unfinished sequences
};

}  // namespace hotset::actors
