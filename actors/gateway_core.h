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
#include "actors/prompt_reader.h"
#include "actors/requests.h"
#include "actors/wire_messages.h"
#include "core/metrics.h"
#include "core/result.h"

namespace hotset::actors {

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

  // `open` and `metrics` outlive the core. `tokenizer` null: token ids only.
  GatewayCore(const GatewayConfig& config, std::shared_ptr<const model::Tokenizer> tokenizer, OpenRequests& open,
              GatewayMetrics& metrics);

  // Expands a request that a PromptReader has read to prompts x n sequences. nullopt: refused, its sink heard why (or
  // it was cancelled before). max_tokens beyond the context is clipped to the room that is left, and the answer ends
  // with `length`.
  std::optional<SubmitSequences> open(RequestHandle handle, std::shared_ptr<const GenerationRequest> request,
                                      const Result<PromptTokens>& prompts, std::int64_t arrived_ns);
  // The engine's answer. Sequences to cancel: the client went away meanwhile.
  void accepted(RequestHandle handle);
  void refused(RequestHandle handle, Error error);

  // Each of these returns the sequences that the engine has to cancel.
  Sequences outputs(StepOutputs step, std::int64_t now_ns);
  Sequences cancel(RequestHandle handle);
  Sequences fail_all(const Error& error);

  [[nodiscard]] std::size_t open_requests() const { return requests_.size(); }

 private:
  struct OpenRequest {
    std::shared_ptr<const GenerationRequest> request;
    PromptTokens prompts;
    std::vector<ChoiceText> choices;       // prompt * n + sample
    Sequences sequences;                   // of the choices
    std::vector<sparse::KvUsage> usage;    // of the choices, as of their newest outputs
    std::vector<std::int64_t> last_token;  // ns of each choice's newest token; 0: none yet
    std::int64_t arrived_ns = 0;
    std::size_t unfinished = 0;
  };
  struct Place {
    RequestHandle handle = 0;
    std::size_t choice = 0;
  };

  [[nodiscard]] OpenRequest expand(std::shared_ptr<const GenerationRequest> request, const PromptTokens& prompts) const;
  [[nodiscard]] SubmitSequences submission(OpenRequest& open);
  void output(SequenceOutput& one, std::int64_t now_ns, Sequences& cancels);
  void note_tokens(OpenRequest& open, std::size_t choice, std::size_t tokens, std::int64_t now_ns);
  void finish(RequestHandle handle, OpenRequest& open);
  Sequences drop(RequestHandle handle);

  GatewayConfig config_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  OpenRequests& open_;
  GatewayMetrics& metrics_;
  std::uint64_t next_sequence_ = 1;
  std::unordered_map<RequestHandle, OpenRequest> requests_;
  std::unordered_map<std::uint64_t, Place> places_;  // unfinished sequences
};

}  // namespace hotset::actors
