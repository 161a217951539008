#include "actors/coordinator_core.h"

#include <algorithm>
#include <utility>

namespace hotset::actors {
namespace {

OutputEnd output_end(SequenceEnd end) {
  switch (end) {
    case SequenceEnd::kStopToken: return OutputEnd::kStopToken;
    case SequenceEnd::kMaxTokens: return OutputEnd::kMaxTokens;
    case SequenceEnd::kFailed: return OutputEnd::kFailed;
    case SequenceEnd::kNone: break;
  }
  return OutputEnd::kNone;
}

}  // namespace

CoordinatorCore::CoordinatorCore(const SchedulerConfig& scheduler, const KvPlannerConfig& pools,
                                 std::int64_t vocabulary, SelectionMenu menu)
    : scheduler_(scheduler), needs_(pools), menu_(std::move(menu)), vocabulary_(vocabulary) {}

Result<SequenceRequest> CoordinatorCore::check(SequenceSubmission& submission) {
  const SequenceId id{submission.sequence};
  const auto outside = [this](std::int32_t token) { return token < 0 || token >= vocabulary_; };
  if (owners_.contains(id)) return invalid_argument("the sequence is running already");
  if (submission.prompt.empty()) return invalid_argument("the prompt is empty", "prompt");
  if (std::any_of(submission.prompt.begin(), submission.prompt.end(), outside)) {
    return invalid_argument("a token id of the prompt is outside the vocabulary", "prompt");
  }
  const auto named = submission.algorithm.empty() ? std::nullopt : std::optional(submission.algorithm);
  const auto budget = submission.own_budget ? std::optional(submission.budget) : std::nullopt;
  Result<SharedPolicy> policy = menu_.resolve(named, budget);
  if (!policy) return policy.error();
  SequenceRequest request;
  request.id = id;
  request.prompt = std::move(submission.prompt);
  request.max_new_tokens = std::max<std::int64_t>(submission.max_new_tokens, 0);
  request.policy = std::move(policy).value();
  if (!submission.limited) {
    request.max_new_tokens = std::clamp<std::int64_t>(needs_.largest_output(demand_of(request)), 1,
                                                      std::max<std::int64_t>(request.max_new_tokens, 1));
  }
  if (Result<void> fits = needs_.can_ever_run(demand_of(request)); !fits) return fits.error();
  request.sampling = std::move(submission.sampling);
  request.stop_token_ids = std::move(submission.stop_token_ids);
  request.prompt_logprobs = submission.prompt_logprobs;
  return request;
}

SubmitAnswer CoordinatorCore::submit(SubmitSequences submission, GatewayNumber gateway, std::int64_t now_ns) {
  std::vector<SequenceRequest> requests;
  std::vector<SequenceId> ids;
  for (SequenceSubmission& one : submission.sequences) {
    Result<SequenceRequest> request = check(one);
    if (!request) return {.accepted = false, .error = request.error()};
    const SequenceId id = request.value().id;
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      return {.accepted = false, .error = invalid_argument("a sequence is submitted twice")};
    }
    ids.push_back(id);
    requests.push_back(std::move(request).value());
  }
  const Result<void> queued = scheduler_.submit(std::move(requests), now_ns);
  if (!queued) return {.accepted = false, .error = queued.error()};
  for (const SequenceId id : ids) owners_.emplace(id, gateway);
  return {.accepted = true, .error = {}};
}

void CoordinatorCore::cancel(const CancelSequences& message) {
  for (const std::uint64_t number : message.sequences) {
    scheduler_.cancel(SequenceId{number});
    owners_.erase(SequenceId{number});
  }
}

void CoordinatorCore::refused(SequenceId id, const Error& error) {
  if (auto event = scheduler_.refused(id, error)) report(std::move(*event));
}

void CoordinatorCore::step_done(const model::StepResult& result) {
  for (SequenceEvent& event : scheduler_.step_done(result)) report(std::move(event));
}

void CoordinatorCore::fail_all(const Error& error) {
  for (SequenceEvent& event : scheduler_.fail_all(error)) report(std::move(event));
}

void CoordinatorCore::report(SequenceEvent event) {
  const auto owner = owners_.find(event.id);
  if (owner == owners_.end()) return;
  SequenceOutput output;
  output.sequence = event.id.value();
  output.prompt_logprobs = std::move(event.prompt_logprobs);
  output.tokens = std::move(event.tokens);
  output.end = output_end(event.end);
  output.error = std::move(event.error);
  output.usage = event.usage;
  outputs_[owner->second].outputs.push_back(std::move(output));
  if (event.end != SequenceEnd::kNone) owners_.erase(owner);
}

std::map<GatewayNumber, StepOutputs> CoordinatorCore::take_outputs() { return std::exchange(outputs_, {}); }

}  // namespace hotset::actors
