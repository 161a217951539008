// One step of the engine, as the control plane hands it to a stream: sequences with their rows, cache operations and
// selection. The stream runs plans in the order in which they arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/attention_verifier.h"
#include "model/sampler.h"
#include "sparse/kv_usage.h"
#include "sparse/selection.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

struct DeviceSampling;  // model/device_sampler.h

// What the stream keeps of a sequence from step to step. Made by the control plane, then touched by the stream only.
struct SequenceState {
  sparse::SequenceKv kv;
  sparse::TierTraffic traffic;       // since the sequence began
  sparse::TierTraffic step_traffic;  // of the step that runs
  sparse::KvUsage usage;             // as of its newest step
  Sampler sampler;
  std::int32_t last_token = -1;  // sampled by the previous step: the next one's input, so nobody waits for it
  std::int64_t last_drawn = -1;  // on a GPU, whose step is not finished: where that token will be (DeviceSampler)
  bool failed = false;           // NaN logits: rows of later steps are skipped
  std::shared_ptr<DeviceSampling> sampling;  // what a GPU keeps of a sequence with penalties
};

struct SequenceStep {
  std::shared_ptr<SequenceState> state;
  std::int64_t first_position = 0;
  std::int32_t rows = 0;
  std::vector<std::int32_t> tokens;  // [rows]; empty: one row, the token that the previous step sampled
  bool prefill = false;              // the rows belong to the prompt
  bool sample = false;               // sample from the last row
  // Prefill: the prompt's own log-probabilities, with that many alternatives (-1: none). The row at position p scores
  // the token at p + 1; the last row of the prompt scores nothing.
  std::int32_t prompt_logprobs = -1;
  std::int32_t next_token = -1;  // with prompt_logprobs: the prompt token after this chunk, -1 at the prompt's end
  std::shared_ptr<const sparse::SelectionAlgorithm> selection;  // null: the rows attend to everything
  std::int64_t budget = 0;                                      // with selection: blocks of one selection
  std::int64_t dense_until = 0;  // with selection: lengths up to it attend to everything; a generated token's is longer
  std::vector<sparse::KvOp> ops;  // applied before the rows
};

// Cache operations of a sequence that need not have rows in the step.
struct SequenceTransition {
  std::shared_ptr<SequenceState> state;
  std::vector<sparse::KvOp> ops;
};

struct StepPlan {
  std::uint64_t step = 0;
  std::vector<SequenceTransition>
      transitions;  // applied first, in their order: pages that one frees, the next may take
  std::vector<SequenceStep> sequences;
  std::vector<SequenceId> deferred;  // sequences that this step parks; StepResult::deferred
};

struct SequenceResult {
  SequenceId id;
  bool sampled = false;
  SampledToken token;                         // when sampled
  std::vector<SampledToken> prompt_logprobs;  // one per scored prompt token of this chunk
  std::string error;                          // not empty: the sequence failed, alone
  sparse::KvUsage usage;                      // since the sequence began
};

struct StepStats {
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;
  std::int64_t hot_sequences = 0;  // sequences that decoded in hot mode in this step
  std::int64_t hits = 0;           // blocks found in hot buffers, over layers
  std::int64_t ring_hits = 0;
  std::int64_t misses = 0;
  std::int64_t bytes_loaded = 0;     // host to device
  std::int64_t bytes_offloaded = 0;  // device to host
  std::int64_t run_ns = 0;           // time in the step; on a GPU from its first launch to the end of the last
  std::int64_t idle_ns = 0;          // time the stream waited for this plan although a sequence was running
};

struct StepResult {
  std::uint64_t step = 0;
  VerifyOutcome verified;  // --verify-rate
  std::vector<SequenceResult> sequences;
  std::vector<SequenceId> deferred;  // the plan's: parked, so none of their drafted rows runs until they are resumed
  StepStats stats;
};

}  // namespace hotset::model
