// Turns logits into a token. Every request has its own random stream, so its output does not depend on its neighbours.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hotset::model {

// Ranges are checked by the API before (docs/api.md).
struct SamplingParams {
  float temperature = 1.0F;                                // 0: exact argmax, ties to the lower id
  float top_p = 1.0F;                                      // (0, 1]
  float min_p = 0.0F;                                      // [0, 1]
  std::int32_t top_k = 0;                                  // 0: all
  float repetition_penalty = 1.0F;                         // > 0; over prompt and output
  float presence_penalty = 0.0F;                           // over output
  float frequency_penalty = 0.0F;                          // over output
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // ids inside the vocabulary
  std::uint64_t seed = 0;
  std::int32_t logprobs = -1;  // alternatives to report; -1: none at all, 0: the chosen token only
};

struct TokenAlternative {
  std::int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  std::int32_t token = 0;
  float logprob = 0;                  // raw: log-softmax of the logits before bias, penalties and temperature
  std::vector<TokenAlternative> top;  // params.logprobs entries, best first, ties to the lower id
};

// False when there is a NaN or plus infinity, or nothing finite.
[[nodiscard]] bool logits_usable(std::span<const float> logits);

// log-softmax value of `token`, and the best `count` alternatives, from raw logits. Sums in double.
[[nodiscard]] SampledToken score_token(std::span<const float> logits, std::int32_t token, std::int32_t count);

// Thread: the stream that runs the sequence.
class Sampler {
 public:
  Sampler() = default;
  Sampler(SamplingParams params, std::span<const std::int32_t> prompt);

  [[nodiscard]] const SamplingParams& params() const { return params_; }

  // `logits` [vocabulary] is used as scratch. False when they are not usable: the sequence fails alone.
  [[nodiscard]] bool sample(std::span<float> logits, SampledToken& out);

 private:
  void adjust(std::span<float> logits) const;
  [[nodiscard]] std::int32_t draw(std::span<float> logits);

  SamplingParams params_;
  std::uint64_t random_state_ = 0;
  std::unordered_map<std::int32_t, std::int32_t> output_counts_;
  std::unordered_set<std::int32_t> seen_;  // tokens of prompt and output, kept when there is a repetition penalty
};

}  // namespace hotset::model
