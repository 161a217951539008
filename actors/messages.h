// Local messages: they stay inside one process and may carry shared pointers to immutable values. What crosses
// processes is in wire_messages.h. A message of this file that reached a remote actor would arrive empty.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "actors/prompt_reader.h"
#include "actors/reply.h"
#include "actors/requests.h"
#include "actors/serving_system.h"
#include "actors/step_draft.h"
#include "actors/tier_page.h"
#include "core/result.h"
#include "model/step_executor.h"
#include "model/step_plan.h"

namespace hotset::actors {

// To a PromptReader.
struct Generate {
  RequestHandle handle = 0;
  std::shared_ptr<const GenerationRequest> request;
  std::int64_t arrived_ns = 0;    // Clock::steady_ns
  std::shared_ptr<void> pending;  // EngineHealth::begin_work, until the gateway has the request
};
struct Tokenize {
  std::shared_ptr<const TokenizeRequest> request;
  std::shared_ptr<Reply<TokenizeResponse>> reply;
};
struct Detokenize {
  std::shared_ptr<const std::vector<std::int32_t>> tokens;
  std::shared_ptr<Reply<std::string>> reply;
};

// To the Gateway.
struct OpenGeneration {
  Generate generate;
  std::shared_ptr<const Result<PromptTokens>> prompts;
};
struct CancelGeneration {
  RequestHandle handle = 0;
};
struct FailOpenRequests {
  Error error;
};

// Between the engine's actors: one step, from stage to stage.
struct PlanSelection {
  std::shared_ptr<const StepDraft> draft;
};
struct PlanPages {
  std::shared_ptr<const StepDraft> draft;
  std::shared_ptr<const StepSelection> selection;
};
struct AdaptStep {
  std::shared_ptr<const StepDraft> draft;
  std::shared_ptr<const StepSelection> selection;
  std::shared_ptr<const StepPages> pages;
};
struct RunStep {
  std::shared_ptr<const model::StepPlan> plan;
};
struct AwaitStep {
  std::shared_ptr<const model::PendingStep> step;
};
struct StepReached {
  std::string failure;  // not empty: the device is broken
};
struct StepDone {
  std::shared_ptr<const model::StepResult> result;
};
struct StepFailed {
  std::string reason;  // the environment is broken: no step follows
};

// From the coordinator to itself: look for work after the answer to the present message has left.
struct Proceed {};

// Between the coordinator and the cache manager.
struct AcquirePages {
  KvDemand demand;
};
struct AcquireAnswer {
  Admission admission = Admission::kLater;
  bool failed = false;
  Error error;  // when failed
};
struct ReleasePages {
  std::vector<SequenceId> sequences;
};

// To a TierStore. Pages of one step or one sequence together, never one message per page.
struct PutPages {
  std::shared_ptr<const std::vector<TierPage>> pages;
};
struct ErasePages {
  std::shared_ptr<const std::vector<PageIdentity>> pages;
};
struct FindPages {
  std::shared_ptr<const std::vector<PageIdentity>> pages;
};
struct FoundPages {
  std::vector<TierPage> pages;  // the leading pages of the question that are there, in its order
};

// To the Supervisor.
struct StopActors {};

}  // namespace hotset::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::Generate)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::OpenGeneration)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::CancelGeneration)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::Tokenize)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::Detokenize)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::FailOpenRequests)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::PlanSelection)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::PlanPages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::AdaptStep)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::RunStep)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::AwaitStep)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::StepReached)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::StepDone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::StepFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::Proceed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::AcquirePages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::AcquireAnswer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::ReleasePages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::PutPages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::ErasePages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::FindPages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::FoundPages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hotset::actors::StopActors)
