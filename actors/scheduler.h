// The plain class behind SparseCoordinator: queue, admission order, continuous batching with chunked prefill, the life
// cycle of every sequence, and steps planned one ahead of the device. It knows no pages (KvCachePlanner) and no text
// (Gateway).
//
// Rules:
// - First come, first served; a request that can't start yet blocks those behind it (so nobody starves).
// - A step holds one decode row of every running sequence (up to max_batch sequences) and prompt chunks of up to
//   prefill_chunk rows together. Chunks of a prompt end at multiples of prefill_chunk or at its end, whatever the
//   neighbours.
// - At most two steps are on their way to the device (one runs, one waits). A decode step's input is the token that the
//   step before samples; an end-of-sequence is therefore known one step late, and the overshoot row is dropped.
// - A sequence that reaches max_tokens gets no further row (that end is known in time).
// Thread: one owner. Time comes in as arguments.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "core/result.h"
#include "model/step_plan.h"

namespace hotset::actors {

struct SchedulerConfig {
  std::int64_t max_batch = 16;
  std::int64_t prefill_chunk = 256;
  std::int64_t max_queue = 512;  // sequences that wait
};

// One choice of one prompt.
struct SequenceRequest {
  SequenceId id;
  std::vector<std::int32_t> prompt;  // not empty, ids inside the vocabulary
  std::int64_t max_new_tokens = 0;   // > 0, or 0 when only the prompt is scored
  model::SamplingParams sampling;
  std::vector<std::int32_t> stop_token_ids;  // end-of-sequence ids included unless ignore_eos
  std::int32_t prompt_logprobs = -1;
};

enum class SequenceEnd { kNone, kStopToken, kMaxTokens, kFailed };

struct SequenceEvent {
  SequenceId id;
  std::vector<model::SampledToken> prompt_logprobs;
  std::vector<model::SampledToken> tokens;
  SequenceEnd end = SequenceEnd::kNone;
  std::string error;  // kFailed
};

}  // namespace hotset::actors
