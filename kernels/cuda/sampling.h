// Tokens from logits on the device, one launch. The order of operations is that of model/sampler.h: repetition
// penalty, presence and frequency penalties, bias; then argmax (temperature 0), or temperature, top-k, min-p and top-p,
// each on what the one before has left, and one draw. Log-probabilities are those of the raw logits.
//
// What is kept is exact: values are ordered by (value, lower id first), weights exp((x - largest) / temperature) are
// taken in double precision (to 2^-46 of each) and become integers of 2^-44, so that no order of summation shows: the
// number of blocks that share a row makes no difference to a bit. A token below 2^-45 of the best one's weight is never
// drawn; log-probabilities add up such integers, too. The random number is Philox 4x32-10 of (seed, position): a token
// depends on its own row's inputs alone. The CPU sampler has another generator: the distributions are equal, the draws
// are not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

inline constexpr std::int32_t kMostAlternatives = 20;
inline constexpr std::int64_t kMostSampledVocabulary = std::int64_t{1} << 18;  // sums of weights stay below 2^63
inline constexpr std::uint32_t kPromptToken = 0x80000000U;                     // bit of a count, below

// One row's wishes; ranges as in model/sampler.h.
struct SamplingRow {
  std::uint64_t seed = 0;
  std::int64_t position = 0;  // of the token that is drawn; a seed and position give one random number
  float temperature = 1.0F;   // <= 0: argmax, ties to the lower id
  float top_p = 1.0F;
  float min_p = 0.0F;
  std::int32_t top_k = 0;  // 0: all
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::int32_t bias_begin = 0;     // this row's entries of bias_ids and bias_values: different ids in the vocabulary
  std::int32_t bias_count = 0;     // 0: none
  std::int32_t slot = -1;          // row of `counts`; -1: no penalties
  std::int32_t alternatives = -1;  // to report, at most kMostAlternatives; -1: no log-probabilities at all
  std::int32_t active = 1;         // 0: a padded row: token -1, nothing else is written
};

// All pointers are the device's.
struct SamplingParams {
  const float* logits = nullptr;  // [rows, stride]
  std::int64_t stride = 0;        // 0: vocabulary
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;            // <= kMostSampledVocabulary
  const SamplingRow* settings = nullptr;  // [rows]
  // [slots, vocabulary]: how often a token stands in the output, and kPromptToken when it stands in the prompt. The
  // drawn token's count goes up. A slot stands in one row of a launch at most. Null: no row has a slot.
  std::uint32_t* counts = nullptr;
  const std::int32_t* bias_ids = nullptr;  // null where no row has a bias
  const float* bias_values = nullptr;
  void* workspace = nullptr;        // sampling_workspace_bytes(), 16-byte aligned; dirty is fine
  std::int32_t* tokens = nullptr;   // [rows]; -1: padded or unusable
  std::uint8_t* usable = nullptr;   // [rows]; 0: a NaN or plus infinity, or nothing finite; 1 otherwise
  float* logprobs = nullptr;        // [rows]; null: never asked for
  std::int32_t* top_ids = nullptr;  // [rows, kMostAlternatives], best first, unused ones -1; null: never asked
  float* top_logprobs = nullptr;    // [rows, kMostAlternatives]; unused ones 0
  std::uint8_t* kept = nullptr;  // [rows, vocabulary] what the filters of rows with a temperature left, 0 or 1; or null
  std::int32_t blocks_per_row = 0;  // 0: chosen by rows and vocabulary; 1, 2, 4 or 8 (before Hopper always 1)
};

[[nodiscard]] std::size_t sampling_workspace_bytes(std::int64_t rows, std::int64_t vocabulary);
void launch_sampling(const SamplingParams& params, Stream stream);

// Begins a slot: counts[slot] becomes zero, then kPromptToken for every token of the prompt. Tokens outside the
// vocabulary are passed over.
struct SamplingPromptParams {
  std::uint32_t* counts = nullptr;  // [slots, vocabulary]
  std::int64_t vocabulary = 0;
  std::int32_t slot = 0;
  const std::int32_t* prompt = nullptr;  // [count]
  std::int64_t count = 0;
};

void launch_sampling_prompt(const SamplingPromptParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
