// The DeepSeek-like decoder without an indexer in double, the whole sequence at once, straight from the formulas
// (arXiv 2405.04434 and 2412.19437, section 2.1 of both); and checkpoints of random numbers for it, in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/concat.h"
#include "model/checkpoint.h"
#include "model/rope.h"

namespace hotset::model {

using Tensors = std::map<std::string, std::vector<float>>;

// Norms near 1, matrices that keep the size of what they multiply.
inline Tensors random_tensors(const ModelConfig& config, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Tensors out;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    const bool matrix = tensor.shape.size() == 2;
    std::vector<float>& values = out[tensor.name];
    values.resize(static_cast<std::size_t>(matrix ? tensor.shape[0] * tensor.shape[1] : tensor.shape[0]));
    const float size = matrix ? 1.5F / std::sqrt(static_cast<float>(tensor.shape[1])) : 0.1F;
    for (float& value : values) value = size * normal(engine) + (matrix ? 0.0F : 1.0F);
  }
  return out;
}

// Views of `tensors`.
inline std::unique_ptr<Checkpoint> checkpoint_of(const ModelConfig& config, const Tensors& tensors) {
  CheckpointContents contents;
  contents.config = config;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    contents.tensors[tensor.name] = {.file_name = tensor.name,
                                     .info = {.type = "F32", .shape = tensor.shape},
                                     .type = kernels::WeightType::kF32,
                                     .data = std::as_bytes(std::span(tensors.at(tensor.name)))};
  }
  return std::make_unique<Checkpoint>(std::move(contents));
}

class SlowDecoder {
 public:
  using Row = std::vector<double>;

  SlowDecoder(const ModelConfig& config, const Tensors& tensors)
      : config_(config), tensors_(tensors), rope_(make_rope(config)) {}

  // [tokens][vocabulary]
  [[nodiscard]] std::vector<Row> logprobs(const std::vector<std::int32_t>& tokens) const {
    std::vector<Row> x;
    for (const std::int32_t token : tokens) {
      const auto first = tensors_.at("embed_tokens").begin() + token * config_.hidden;
      x.emplace_back(first, first + config_.hidden);
    }
    for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = concat("layers.", layer, ".");
      add_attention(prefix, x);
      for (Row& row : x) {
        const Row h = norm(row, prefix + "post_attention_layernorm", config_.rms_epsilon);
        const bool sparse = config_.experts && config_.experts->sparse_layer[static_cast<std::size_t>(layer)];
        add(row, sparse ? experts(prefix + "mlp.", h) : mlp(prefix + "mlp.", h), 1);
      }
    }
    for (Row& row : x) {
      row = times("lm_head", norm(row, "norm", config_.rms_epsilon));
      const double max = std::ranges::max(row);
      double sum = 0;
      for (const double value : row) sum += std::exp(value - max);
      for (double& value : row) value -= max + std::log(sum);
    }
    return x;
  }

 private:
  static void add(Row& to, const Row& from, double weight) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += weight * from[i];
  }
  static Row part(const Row& row, std::int64_t first, std::int64_t count) {
    return {row.begin() + first, row.begin() + first + count};
  }
  static double dot(const Row& a, const Row& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

  [[nodiscard]] Row times(const std::string& name, const Row& x) const {
    const std::vector<float>& matrix = tensors_.at(name);
    Row y(matrix.size() / x.size());
    for (std::size_t n = 0; n < y.size(); ++n) {
      for (std::size_t k = 0; k < x.size(); ++k) y[n] += double{matrix[n * x.size() + k]} * x[k];
    }
    return y;
  }
  [[nodiscard]] Row norm(const Row& x, const std::string& name, double epsilon) const {
    const double factor = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + epsilon);
    Row y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= factor * double{tensors_.at(name)[i]};
    return y;
  }
  [[nodiscard]] Row rotated(const Row& x, std::size_t position) const {
    const std::size_t half = x.size() / 2;
    Row y(x.size());
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * double{rope_.inv_freq[i]};
      y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
      y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return y;
  }

  void add_attention(const std::string& prefix, std::vector<Row>& x) const {
    const LatentConfig& latent = *config_.latent;
    const std::int64_t nope = latent.nope_dim;
    const std::string self = prefix + "self_attn.";
    std::vector<Row> q, kv, shared_key;  // kv: K and V of every head
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row h = norm(x[t], prefix + "input_layernorm", config_.rms_epsilon);
      q.push_back(latent.q_rank == 0
                      ? times(self + "q_proj", h)
                      : times(self + "q_b_proj", norm(times(self + "q_a_proj", h), self + "q_a_layernorm", 1e-6)));
      const Row cached = times(self + "kv_a_proj_with_mqa", h);
      kv.push_back(times(self + "kv_b_proj", norm(part(cached, 0, latent.kv_rank), self + "kv_a_layernorm", 1e-6)));
      shared_key.push_back(rotated(part(cached, latent.kv_rank, latent.rope_dim), t));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row context;
      for (std::int64_t head = 0; head < config_.heads; ++head) {
        const Row q_nope = part(q[t], head * config_.head_dim, nope);
        const Row q_rope = rotated(part(q[t], head * config_.head_dim + nope, latent.rope_dim), t);
        const std::int64_t at = head * (nope + latent.value_dim);
        Row sum(static_cast<std::size_t>(latent.value_dim));
        double total = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          const double score = dot(q_nope, part(kv[s], at, nope)) + dot(q_rope, shared_key[s]);
          const double weight = std::exp(score / std::sqrt(static_cast<double>(config_.head_dim)));
          add(sum, part(kv[s], at + nope, latent.value_dim), weight);
          total += weight;
        }
        for (const double value : sum) context.push_back(value / total);
      }
      add(x[t], times(self + "o_proj", context), 1);
    }
  }

  [[nodiscard]] Row mlp(const std::string& prefix, const Row& h) const {
    Row inner = times(prefix + "gate_proj", h);
    const Row up = times(prefix + "up_proj", h);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i] / (1 + std::exp(-inner[i]));
    return times(prefix + "down_proj", inner);
  }

  [[nodiscard]] Row experts(const std::string& prefix, const Row& h) const {
    const ExpertsConfig& config = *config_.experts;
    Row score = times(prefix + "gate", h);
    const bool softmax = config.router == ExpertsConfig::Router::kSoftmax;
    double total = 0;
    for (double& value : score) {
      value = softmax ? std::exp(value) : 1 / (1 + std::exp(-value));
      total += value;
    }
    Row choice = score;
    for (std::size_t i = 0; i < score.size(); ++i) {
      if (softmax) score[i] = choice[i] = score[i] / total;
      if (config.correction_bias) choice[i] += double{tensors_.at(prefix + "gate.e_score_correction_bias")[i]};
    }
    // Groups beyond the best ones drop out.
    const auto width = static_cast<std::size_t>(config.count / config.groups);
    std::vector<std::pair<double, std::size_t>> groups;
    for (std::size_t first = 0; first < choice.size(); first += width) {
      Row members = part(choice, static_cast<std::int64_t>(first), static_cast<std::int64_t>(width));
      std::ranges::sort(members, std::greater<>());
      const bool best = config.group_score == ExpertsConfig::GroupScore::kBest;
      groups.emplace_back(best ? members[0] : members[0] + members[1], first);
    }
    std::ranges::sort(groups, std::greater<>());
    std::vector<std::pair<double, std::size_t>> candidates;
    for (std::int32_t group = 0; group < config.top_groups; ++group) {
      const std::size_t first = groups[static_cast<std::size_t>(group)].second;
      for (std::size_t i = first; i < first + width; ++i) candidates.emplace_back(choice[i], i);
    }
    std::ranges::sort(candidates, std::greater<>());
    candidates.resize(static_cast<std::size_t>(config.per_token));
    double sum = 0;
    for (const auto& [unused, expert] : candidates) sum += score[expert];
    Row out(h.size());
    for (const auto& [unused, expert] : candidates) {
      const double weight = score[expert] / (config.normalised ? sum : 1) * config.scaling_factor;
      add(out, mlp(concat(prefix, "experts.", expert, "."), h), weight);
    }
    if (config.shared > 0) add(out, mlp(prefix + "shared_experts.", h), 1);
    return out;
  }

  const ModelConfig& config_;
  const Tensors& tensors_;
  RopeTable rope_;
};

}  // namespace hotset::model
