#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/splitmix.h"

namespace hotset::model {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::uint64_t next_random(std::uint64_t& state) {
  const std::uint64_t number = splitmix64(state);
  state += kSplitmixStep;
  return number;
}

double next_unit(std::uint64_t& state) { return static_cast<double>(next_random(state) >> 11) * 0x1.0p-53; }

// Better score first, then the lower id.
struct BetterToken {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

std::int32_t argmax(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The `count` best ids, best first.
std::vector<std::int32_t> best_tokens(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  const BetterToken better{logits};
  std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), better);
  ids.resize(count);
  std::sort(ids.begin(), ids.end(), better);
  return ids;
}

// Orders the first ids of `ids`, best first, as many as are needed to hold `wanted` of weight; the rest is dropped. A
// nucleus is a few of the vocabulary's tokens, so sorting them all would be most of the sampler's time.
template <class Weight>
void keep_nucleus(std::span<const float> logits, double wanted, const Weight& weight, std::vector<std::int32_t>& ids) {
  const BetterToken better{logits};
  double kept = 0;
  std::size_t count = 0;
  std::size_t sorted = 0;
  for (std::size_t next = 256; sorted < ids.size() && kept < wanted; next *= 8) {
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(sorted);
    sorted = std::min(next, ids.size());
    const auto end = ids.begin() + static_cast<std::ptrdiff_t>(sorted);
    std::nth_element(begin, end, ids.end(), better);
    std::sort(begin, end, better);
    while (count < sorted && kept < wanted) kept += weight(ids[count++]);
  }
  ids.resize(std::max<std::size_t>(count, 1));
}

double log_sum_exp(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum);
}

}  // namespace

bool logits_usable(std::span<const float> logits) {
  bool finite = false;
  for (const float x : logits) {
    if (std::isnan(x) || x == std::numeric_limits<float>::infinity()) return false;
    finite = finite || x > kMinusInfinity;
  }
  return finite;
}

SampledToken score_token(std::span<const float> logits, std::int32_t token, std::int32_t count) {
  SampledToken out;
  out.token = token;
  const double total = log_sum_exp(logits, logits[static_cast<std::size_t>(argmax(logits))]);
  const auto logprob = [&](std::int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - total);
  };
  out.logprob = logprob(token);
  if (count > 0) {
    for (const std::int32_t id : best_tokens(logits, static_cast<std::size_t>(count)))
      out.top.push_back({id, logprob(id)});
  }
  return out;
}

Sampler::Sampler(SamplingParams params, std::span<const std::int32_t> prompt)
    : params_(std::move(params)), random_state_(params_.seed) {
  if (params_.repetition_penalty != 1.0F) seen_.insert(prompt.begin(), prompt.end());
}

bool Sampler::sample(std::span<float> logits, SampledToken& out) {
  if (!logits_usable(logits)) return false;
  // The raw scores are needed after the adjustments have changed them.
  SampledToken scored;
  std::int32_t token = -1;
  if (params_.logprobs >= 0) {
    const std::vector<float> raw(logits.begin(), logits.end());
    adjust(logits);
    token = draw(logits);
    scored = score_token(raw, token, params_.logprobs);
  } else {
    adjust(logits);
    token = draw(logits);
    scored.token = token;
  }
  if (params_.presence_penalty != 0.0F || params_.frequency_penalty != 0.0F) ++output_counts_[token];
  if (params_.repetition_penalty != 1.0F) seen_.insert(token);
  out = std::move(scored);
  return true;
}

// Order: repetition penalty (Keskar et al., CTRL, 2019), presence and frequency penalties (OpenAI API), logit bias.
void Sampler::adjust(std::span<float> logits) const {
  if (params_.repetition_penalty != 1.0F) {
    for (const std::int32_t id : seen_) {
      float& x = logits[static_cast<std::size_t>(id)];
      x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
    }
  }
  if (params_.presence_penalty != 0.0F || params_.frequency_penalty != 0.0F) {
    for (const auto& [id, count] : output_counts_) {
      logits[static_cast<std::size_t>(id)] -=
          params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) logits[static_cast<std::size_t>(id)] += bias;
}

// Temperature, then top-k, min-p and top-p on what the one before has left, then one draw from the request's own
// stream.
std::int32_t Sampler::draw(std::span<float> logits) {
  if (params_.temperature <= 0.0F) return argmax(logits);
  const bool all = params_.top_k <= 0 || static_cast<std::size_t>(params_.top_k) >= logits.size();
  const float largest = logits[static_cast<std::size_t>(argmax(logits))];
  const double unit = next_unit(random_state_);
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest) / params_.temperature);
  };
  std::vector<std::int32_t> ids;
  if (all) {
    ids.resize(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
  } else {
    ids = best_tokens(logits, static_cast<std::size_t>(params_.top_k));
  }
  if (params_.min_p > 0.0F) std::erase_if(ids, [&](std::int32_t id) { return weight(id) < params_.min_p; });
  if (params_.top_p < 1.0F) {
    double total = 0;
    for (const std::int32_t id : ids) total += weight(id);
    keep_nucleus(logits, params_.top_p * total, weight, ids);
  }
  std::vector<double> weights(ids.size());
  std::transform(ids.begin(), ids.end(), weights.begin(), weight);
  double target = unit * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    target -= weights[i];
    if (target < 0) return ids[i];
  }
  // Rounding left the target at the end: the last token with any weight.
  std::size_t last = weights.size() - 1;
  while (last > 0 && weights[last] == 0) --last;
  return ids[last];
}

}  // namespace hotset::model
