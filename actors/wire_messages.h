// What passes between a gateway and an engine, perhaps in another process: values only, no pointers, no leases. Every
// type has an inspect() and is registered in actors/actor_config.cpp. Numbers are checked by the receiver as if a
// stranger had sent them.
#pragma once

#include <caf/meta/type_name.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "model/sampler.h"
#include "sparse/kv_usage.h"

namespace hotset {

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Error& x) {
  return f(caf::meta::type_name("hotset::Error"), x.code, x.message, x.param);
}

}  // namespace hotset

namespace hotset::model {

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SamplingParams& x) {
  return f(caf::meta::type_name("hotset::SamplingParams"), x.temperature, x.top_p, x.min_p, x.top_k,
           x.repetition_penalty, x.presence_penalty, x.frequency_penalty, x.logit_bias, x.seed, x.logprobs);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenAlternative& x) {
  return f(caf::meta::type_name("hotset::TokenAlternative"), x.token, x.logprob);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SampledToken& x) {
  return f(caf::meta::type_name("hotset::SampledToken"), x.token, x.logprob, x.top);
}

}  // namespace hotset::model

namespace hotset::sparse {

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, KvUsage& x) {
  return f(caf::meta::type_name("hotset::KvUsage"), x.device_row_bytes, x.device_metadata_bytes, x.device_table_bytes,
           x.host_bytes, x.hits, x.ring_hits, x.misses, x.bytes_loaded, x.bytes_offloaded);
}

}  // namespace hotset::sparse

namespace hotset::actors {

// One choice of one prompt. `sequence` is chosen by the gateway and never used again.
struct SequenceSubmission {
  std::uint64_t sequence = 0;
  std::vector<std::int32_t> prompt;
  bool limited = false;             // false: fewer tokens are fine too, as many as the engine has room for
  std::int64_t max_new_tokens = 0;  // at most; not limited: the room that the context leaves
  model::SamplingParams sampling;
  std::vector<std::int32_t> stop_token_ids;
  std::int32_t prompt_logprobs = -1;
  std::string algorithm;    // empty: the engine's choice
  bool own_budget = false;  // false: the engine's budget
  std::int64_t budget = 0;  // tokens
};

// All choices of one request: accepted or refused as a whole.
struct SubmitSequences {
  std::vector<SequenceSubmission> sequences;
};
struct SubmitAnswer {
  bool accepted = false;
  Error error;  // when refused
};
struct CancelSequences {
  std::vector<std::uint64_t> sequences;  // unknown and finished ones are ignored
};

enum class OutputEnd : std::uint8_t { kNone, kStopToken, kMaxTokens, kFailed };

struct SequenceOutput {
  std::uint64_t sequence = 0;
  std::vector<model::SampledToken> prompt_logprobs;
  std::vector<model::SampledToken> tokens;
  OutputEnd end = OutputEnd::kNone;
  Error error;            // kFailed
  sparse::KvUsage usage;  // since the sequence began
};
// Everything that one step brought for one gateway.
struct StepOutputs {
  std::vector<SequenceOutput> outputs;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SequenceSubmission& x) {
  return f(caf::meta::type_name("hotset::SequenceSubmission"), x.sequence, x.prompt, x.limited, x.max_new_tokens,
           x.sampling, x.stop_token_ids, x.prompt_logprobs, x.algorithm, x.own_budget, x.budget);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SubmitSequences& x) {
  return f(caf::meta::type_name("hotset::SubmitSequences"), x.sequences);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SubmitAnswer& x) {
  return f(caf::meta::type_name("hotset::SubmitAnswer"), x.accepted, x.error);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, CancelSequences& x) {
  return f(caf::meta::type_name("hotset::CancelSequences"), x.sequences);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SequenceOutput& x) {
  return f(caf::meta::type_name("hotset::SequenceOutput"), x.sequence, x.prompt_logprobs, x.tokens, x.end, x.error,
           x.usage);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, StepOutputs& x) {
  return f(caf::meta::type_name("hotset::StepOutputs"), x.outputs);
}

}  // namespace hotset::actors
