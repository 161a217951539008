#include "kernels/cpu/cpu_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cpu/top_k.h"

namespace hotset::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kRoutedRowsPerTask = 4;

float number_or_minus_infinity(float x) { return std::isnan(x) ? kMinusInfinity : x; }

void sigmoid_scores(const float* logits, std::span<float> scores) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = 1.0F / (1.0F + std::exp(-number_or_minus_infinity(logits[i])));
  }
}

void softmax_scores(const float* logits, std::span<float> scores) {
  float max = kMinusInfinity;
  for (std::size_t i = 0; i < scores.size(); ++i) max = std::max(max, number_or_minus_infinity(logits[i]));
  float sum = 0.0F;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const float logit = number_or_minus_infinity(logits[i]);
    scores[i] = logit == kMinusInfinity ? 0.0F : std::exp(logit - max);
    sum += scores[i];
  }
  if (sum == 0.0F) return;
  for (float& score : scores) score /= sum;
}

// NaN counts as minus infinity.
float group_score(std::span<const float> choices, bool by_best) {
  float best = kMinusInfinity;
  float second = kMinusInfinity;
  for (const float choice : choices) {
    if (choice > best) {
      second = best;
      best = choice;
    } else if (choice > second) {
      second = choice;
    }
  }
  return by_best || choices.size() == 1 ? best : best + second;
}

void choose(const std::vector<float>& from, std::int32_t count, std::vector<std::uint32_t>& keys,
            std::vector<std::int32_t>& out) {
  const auto length = static_cast<std::int64_t>(from.size());
  keys.resize(from.size());
  out.resize(static_cast<std::size_t>(count));
  top_k_row({.scores = from.data(), .length = length, .first = 0, .last = length, .k = count}, keys.data(), out.data());
}

}  // namespace

CpuExperts::CpuExperts(const IsaKernels& kernels, ThreadPool& pool, CpuMatmul& matmul)
    : kernels_(kernels), pool_(pool), matmul_(matmul), scratch_(static_cast<std::size_t>(pool.threads())) {}

void CpuExperts::route(const RouteParams& params) {
  HS_CHECK(params.groups >= 1 && params.experts % params.groups == 0, "groups divide the experts");
  const std::int32_t width = params.experts / params.groups;
  HS_CHECK(params.top_groups <= params.groups && params.per_token <= params.top_groups * width,
           "the groups that stay hold enough experts");
  const auto one = [&](std::int64_t row, RouteScratch& scratch) {
    const float* const logits = params.logits + row * params.experts;
    const auto experts = static_cast<std::size_t>(params.experts);
    scratch.scores.resize(experts);
    scratch.choices.resize(experts);
    if (params.softmax) {
      softmax_scores(logits, scratch.scores);
    } else {
      sigmoid_scores(logits, scratch.scores);
    }
    for (std::size_t i = 0; i < experts; ++i) {
      const float choice = params.bias == nullptr ? scratch.scores[i] : scratch.scores[i] + params.bias[i];
      scratch.choices[i] = std::isnan(logits[i]) ? kMinusInfinity : choice;
    }
    // Of groups that don't stay nothing may be taken, so they are left out rather than scored low.
    scratch.group_scores.clear();
    for (std::int32_t group = 0; group < params.groups; ++group) {
      const auto members = std::span<const float>(scratch.choices)
                               .subspan(static_cast<std::size_t>(group) * width, static_cast<std::size_t>(width));
      scratch.group_scores.push_back(group_score(members, params.group_by_best));
    }
    choose(scratch.group_scores, params.top_groups, scratch.keys, scratch.groups);
    scratch.candidates.clear();
    for (const std::int32_t group : scratch.groups) {
      const auto first = scratch.choices.begin() + std::ptrdiff_t{group} * width;
      scratch.candidates.insert(scratch.candidates.end(), first, first + width);
    }
    choose(scratch.candidates, params.per_token, scratch.keys, scratch.taken);
    std::int32_t* const ids = params.ids + row * params.per_token;
    float* const weights = params.weights + row * params.per_token;
    float sum = 0.0F;
    for (std::int32_t i = 0; i < params.per_token; ++i) {
      const std::int32_t candidate = scratch.taken[static_cast<std::size_t>(i)];
      ids[i] = scratch.groups[static_cast<std::size_t>(candidate / width)] * width + candidate % width;
      weights[i] = scratch.scores[static_cast<std::size_t>(ids[i])];
      sum += weights[i];
    }
    for (std::int32_t i = 0; i < params.per_token; ++i) {
      if (params.normalised) weights[i] /= sum + 1e-20F;
      weights[i] *= params.scaling_factor;
    }
  };
  pool_.run(ceil_div(params.rows, kRoutedRowsPerTask), [&](std::int64_t task, int worker) {
    const std::int64_t end = std::min(params.rows, (task + 1) * kRoutedRowsPerTask);
    for (std::int64_t row = task * kRoutedRowsPerTask; row < end; ++row) {
      one(row, scratch_[static_cast<std::size_t>(worker)]);
    }
  });
}

void CpuPackedExperts::set(std::int32_t expert, Part part, const MatrixView& matrix) {
  const bool down = part == Part::kDown;
  HS_CHECK(matrix.rows == (down ? shape_.hidden : shape_.intermediate) &&
               matrix.cols == (down ? shape_.intermediate : shape_.hidden),
           "the experts have one shape");
  parts_.at(static_cast<std::size_t>(expert))[static_cast<std::size_t>(part)] =
      std::make_unique<CpuPackedMatrix>(matrix, pool_);
}

std::int64_t CpuPackedExperts::bytes() const {
  std::int64_t sum = 0;
  for (const auto& expert : parts_) {
    for (const auto& part : expert) sum += part->bytes();
  }
  return sum;
}

const CpuPackedMatrix& CpuPackedExperts::part(std::int32_t expert, Part part) const {
  const auto& found = parts_[static_cast<std::size_t>(expert)][static_cast<std::size_t>(part)];
  HS_CHECK(found != nullptr, "every part of every expert is set");
  return *found;
}

// The order in which experts run is that in which a row's terms are added.
void CpuExperts::run(const ExpertsParams& params) {
  const auto* const experts = dynamic_cast<const CpuPackedExperts*>(params.experts);
  HS_CHECK(experts != nullptr, "the experts were packed by this backend");
  const std::int32_t count = experts->shape().count;
  group_by_expert(params, count);
  for (std::int32_t expert = 0; expert < count; ++expert) run_expert(params, *experts, expert);
}

void CpuExperts::group_by_expert(const ExpertsParams& params, std::int32_t count) {
  const std::int64_t uses = params.rows * params.per_token;
  first_.assign(static_cast<std::size_t>(count) + 1, 0);
  for (std::int64_t use = 0; use < uses; ++use) {
    HS_CHECK(params.ids[use] >= 0 && params.ids[use] < count, "there is no such expert");
    ++first_[static_cast<std::size_t>(params.ids[use]) + 1];
  }
  for (std::size_t expert = 1; expert < first_.size(); ++expert) first_[expert] += first_[expert - 1];
  uses_.resize(static_cast<std::size_t>(uses));
  // Filling moves each start to the next expert's; the last step moves them back.
  for (std::int64_t use = 0; use < uses; ++use) {
    uses_[static_cast<std::size_t>(first_[static_cast<std::size_t>(params.ids[use])]++)] = use;
  }
  for (std::size_t expert = first_.size() - 1; expert > 0; --expert) first_[expert] = first_[expert - 1];
  first_[0] = 0;
}

void CpuExperts::run_expert(const ExpertsParams& params, const CpuPackedExperts& experts, std::int32_t expert) {
  const auto at = static_cast<std::size_t>(expert);
  const auto uses = std::span<const std::int64_t>(uses_).subspan(static_cast<std::size_t>(first_[at]),
                                                                 static_cast<std::size_t>(first_[at + 1] - first_[at]));
  const auto count = static_cast<std::int64_t>(uses.size());
  if (count == 0) return;
  using Part = PackedExperts::Part;
  const CpuPackedMatrix& gate = experts.part(expert, Part::kGate);
  const CpuPackedMatrix& up = experts.part(expert, Part::kUp);
  const CpuPackedMatrix& down = experts.part(expert, Part::kDown);
  const std::int64_t hidden = gate.cols();
  const std::int64_t width = gate.rows();
  float* const x = x_.reserve(count * hidden);
  float* const gated = gate_.reserve(count * width);
  float* const upped = up_.reserve(count * width);
  pool_.run(count, [&](std::int64_t i, int) {
    const float* const from = params.x.f32() + uses[static_cast<std::size_t>(i)] / params.per_token * hidden;
    std::copy(from, from + hidden, x + i * hidden);
  });
  matmul_.run({.x = x, .y = gated, .m = count}, gate);
  matmul_.run({.x = x, .y = upped, .m = count}, up);
  pool_.run(count, [&](std::int64_t i, int) {
    kernels_.silu_gate(gated + i * width, upped + i * width, gated + i * width, width);
  });
  matmul_.run({.x = gated, .y = x, .m = count}, down);
  pool_.run(count, [&](std::int64_t i, int) {
    const std::int64_t use = uses[static_cast<std::size_t>(i)];
    const float weight = params.weights[use];
    const float* const from = x + i * hidden;
    float* const to = params.out + use / params.per_token * hidden;
    for (std::int64_t c = 0; c < hidden; ++c) to[c] += weight * from[c];
  });
}

}  // namespace hotset::kernels
