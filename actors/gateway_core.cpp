#include "actors/gateway_core.h"

#include <algorithm>
#include <utility>

#include "core/concat.h"
#include "core/splitmix.h"

namespace hotset::actors {
namespace {

constexpr double kSecond = 1e9;  // ns

std::vector<double> token_seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
}

}  // namespace

GatewayMetrics::GatewayMetrics(MetricsRegistry& registry)
    : requests(registry.counter("hotset_requests_total", "Requests that arrived")),
      refused(registry.counter("hotset_requests_refused_total", "Requests that ended in an error")),
      cancelled(registry.counter("hotset_requests_cancelled_total", "Requests whose client went away")),
      prompt_tokens(registry.counter("hotset_prompt_tokens_total", "Prompt tokens of accepted requests")),
      generated_tokens(registry.counter("hotset_generated_tokens_total", "Tokens that clients received")),
      first_token_seconds(registry.histogram("hotset_time_to_first_token_seconds",
                                             "From arrival to a choice's first token", token_seconds())),
      inter_token_seconds(
          registry.histogram("hotset_inter_token_seconds", "Between two tokens of a choice", token_seconds())) {}

std::uint64_t sample_seed(std::uint64_t seed, std::int32_t sample) {
  if (sample == 0) return seed;
  return splitmix64(seed + static_cast<std::uint64_t>(sample - 1) * kSplitmixStep);
}

GatewayCore::GatewayCore(const GatewayConfig& config, std::shared_ptr<const model::Tokenizer> tokenizer,
                         OpenRequests& open, GatewayMetrics& metrics)
    : config_(config), tokenizer_(std::move(tokenizer)), open_(open), metrics_(metrics) {}

GatewayCore::OpenRequest GatewayCore::expand(std::shared_ptr<const GenerationRequest> request,
                                             const PromptTokens& prompts) const {
  OpenRequest out;
  out.prompts = prompts;
  for (const auto& prompt : prompts) {
    for (std::int32_t sample = 0; sample < request->n; ++sample) {
      out.choices.emplace_back(static_cast<std::int32_t>(out.choices.size()), request, prompt, tokenizer_);
    }
  }
  out.usage.resize(out.choices.size());
  out.last_token.assign(out.choices.size(), 0);
  out.unfinished = out.choices.size();
  out.request = std::move(request);
  return out;
}

SubmitSequences GatewayCore::submission(OpenRequest& open) {
  const GenerationRequest& request = *open.request;
  SubmitSequences out;
  for (std::size_t choice = 0; choice < open.choices.size(); ++choice) {
    const auto samples = static_cast<std::size_t>(request.n);
    SequenceSubmission one;
    one.sequence = next_sequence_++;
    one.prompt = *open.prompts[choice / samples];
    const std::int64_t room = config_.max_context - static_cast<std::int64_t>(one.prompt.size());
    one.limited = request.max_tokens.has_value();
    one.max_new_tokens = std::min(request.max_tokens.value_or(room), room);
    one.sampling = request.sampling;
    one.sampling.seed = sample_seed(request.sampling.seed, static_cast<std::int32_t>(choice % samples));
    one.stop_token_ids = request.stop_token_ids;
    if (!request.ignore_eos) {
      one.stop_token_ids.insert(one.stop_token_ids.end(), config_.eos_tokens.begin(), config_.eos_tokens.end());
    }
    one.prompt_logprobs = request.echo ? request.sampling.logprobs : -1;
    one.algorithm = request.algorithm.value_or("");
    one.own_budget = request.budget.has_value();
    one.budget = request.budget.value_or(0);
    open.sequences.push_back(one.sequence);
    out.sequences.push_back(std::move(one));
  }
  return out;
}

std::optional<SubmitSequences> GatewayCore::open(RequestHandle handle, std::shared_ptr<const GenerationRequest> request,
                                                 const Result<PromptTokens>& prompts, std::int64_t arrived_ns) {
  metrics_.requests.add();
  if (open_.find(handle) == nullptr) return std::nullopt;
  if (!prompts) {
    refused(handle, prompts.error());
    return std::nullopt;
  }
  OpenRequest& open = requests_.emplace(handle, expand(std::move(request), prompts.value())).first->second;
  open.arrived_ns = arrived_ns;
  SubmitSequences out = submission(open);
  for (std::size_t choice = 0; choice < open.sequences.size(); ++choice) {
    places_.emplace(open.sequences[choice], Place{.handle = handle, .choice = choice});
  }
  return out;
}

void GatewayCore::accepted(RequestHandle handle) {
  const auto found = requests_.find(handle);
  const std::shared_ptr<ResponseSink> sink = open_.find(handle);
  if (found == requests_.end() || sink == nullptr) return;
  OpenRequest& open = found->second;
  GenerationStarted started;
  for (const auto& prompt : open.prompts) {
    started.prompt_token_ids.push_back(*prompt);
    metrics_.prompt_tokens.add(static_cast<double>(prompt->size()));
  }
  sink->on_started(std::move(started));
  for (ChoiceText& choice : open.choices) {
    if (auto delta = choice.start()) sink->on_delta(std::move(*delta));
  }
}

void GatewayCore::refused(RequestHandle handle, Error error) {
  drop(handle);
  const std::shared_ptr<ResponseSink> sink = open_.take(handle);
  if (sink == nullptr) return;
  metrics_.refused.add();
  sink->on_error(std::move(error));
}

GatewayCore::Sequences GatewayCore::outputs(StepOutputs step, std::int64_t now_ns) {
  Sequences cancels;
  for (SequenceOutput& one : step.outputs) output(one, now_ns, cancels);
  return cancels;
}

void GatewayCore::output(SequenceOutput& one, std::int64_t now_ns, Sequences& cancels) {
  const auto place = places_.find(one.sequence);
  if (place == places_.end()) return;  // ended by a stop string or cancelled
  const auto [handle, index] = place->second;
  OpenRequest& open = requests_.at(handle);
  if (one.end != OutputEnd::kNone) places_.erase(place);
  if (one.end == OutputEnd::kFailed) {
    Sequences siblings = drop(handle);
    cancels.insert(cancels.end(), siblings.begin(), siblings.end());
    if (const auto sink = open_.take(handle)) {
      metrics_.refused.add();
      sink->on_error(std::move(one.error));
    }
    return;
  }
  open.usage[index] = one.usage;
  ChoiceText& choice = open.choices[index];
  const std::int64_t before = choice.completion_tokens();
  std::optional<ChoiceDelta> delta = choice.add(one);
  note_tokens(open, index, static_cast<std::size_t>(choice.completion_tokens() - before), now_ns);
  if (delta) {
    if (const auto sink = open_.find(handle)) sink->on_delta(std::move(*delta));
  }
  if (!choice.finished()) return;
  if (one.end == OutputEnd::kNone) {  // a stop string: the engine doesn't know
    places_.erase(one.sequence);
    cancels.push_back(one.sequence);
  }
  if (--open.unfinished == 0) finish(handle, open);
}

void GatewayCore::note_tokens(OpenRequest& open, std::size_t choice, std::size_t tokens, std::int64_t now_ns) {
  if (tokens == 0) return;
  metrics_.generated_tokens.add(static_cast<double>(tokens));
  const bool first = open.last_token[choice] == 0;
  const std::int64_t since = first ? open.arrived_ns : open.last_token[choice];
  (first ? metrics_.first_token_seconds : metrics_.inter_token_seconds)
      .observe(static_cast<double>(now_ns - since) / kSecond);
  open.last_token[choice] = now_ns;
}

void GatewayCore::finish(RequestHandle handle, OpenRequest& open) {
  GenerationUsage usage;
  for (const auto& prompt : open.prompts) usage.prompt_tokens += static_cast<std::int64_t>(prompt->size());
  for (const ChoiceText& choice : open.choices) usage.completion_tokens += choice.completion_tokens();
  for (const sparse::KvUsage& one : open.usage) usage.kv += one;
  drop(handle);
  if (const auto sink = open_.take(handle)) sink->on_finished(usage);
}

GatewayCore::Sequences GatewayCore::drop(RequestHandle handle) {
  const auto found = requests_.find(handle);
  if (found == requests_.end()) return {};
  Sequences unfinished;
  for (const std::uint64_t sequence : found->second.sequences) {
    if (places_.erase(sequence) > 0) unfinished.push_back(sequence);
  }
  requests_.erase(found);
  return unfinished;
}

GatewayCore::Sequences GatewayCore::cancel(RequestHandle handle) {
  open_.take(handle);
  if (requests_.contains(handle)) metrics_.cancelled.add();
  return drop(handle);
}

GatewayCore::Sequences GatewayCore::fail_all(const Error& error) {
  Sequences out;
  while (!requests_.empty()) {
    const RequestHandle handle = requests_.begin()->first;
    const Sequences sequences = drop(handle);
    out.insert(out.end(), sequences.begin(), sequences.end());
  }
  // Also those whose Generate is still in the mailbox: open() finds no sink for them.
  for (const std::shared_ptr<ResponseSink>& sink : open_.take_all()) {
    metrics_.refused.add();
    sink->on_error(error);
  }
  return out;
}

}  // namespace hotset::actors
