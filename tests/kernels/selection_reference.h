// The scores of selection once more in double, written from their definitions as plainly as they read. Keys are
// [tokens][kv_heads][dim], queries [heads][dim].
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace hotset::reference {

struct Shape {
  int heads = 1;
  int kv_heads = 1;
  int dim = 1;
  [[nodiscard]] int kv_head_of(int head) const { return head / (heads / kv_heads); }
};

// sum over heads of weights[h] * max(0, q[h] . key[t]).
template <class Key>
std::vector<double> index_scores(const float* q, const float* weights, const std::vector<Key>& keys, int heads,
                                 int dim) {
  std::vector<double> out;
  for (std::size_t t = 0; t * dim < keys.size(); ++t) {
    double score = 0;
    for (int h = 0; h < heads; ++h) {
      double dot = 0;
      for (int c = 0; c < dim; ++c) dot += double{q[h * dim + c]} * double{keys[t * dim + c]};
      score += double{weights[h]} * std::max(0.0, dot);
    }
    out.push_back(score);
  }
  return out;
}

// Mean over heads of each head's softmax; scores [heads][count].
inline std::vector<double> mean_of_softmaxes(const std::vector<std::vector<double>>& scores) {
  std::vector<double> out(scores[0].size(), 0.0);
  for (const std::vector<double>& head : scores) {
    const double most = *std::max_element(head.begin(), head.end());
    double sum = 0;
    for (const double x : head) sum += std::exp(x - most);
    for (std::size_t i = 0; i < head.size(); ++i)
      out[i] += std::exp(head[i] - most) / sum / static_cast<double>(scores.size());
  }
  return out;
}

// x [rank] = key U[g]; basis [kv_heads][dim][rank].
inline std::vector<double> project(const float* x, const float* basis, int kv_head, int dim, int rank) {
  std::vector<double> out(static_cast<std::size_t>(rank), 0.0);
  for (int c = 0; c < dim; ++c)
    for (int j = 0; j < rank; ++j) out[j] += double{x[c]} * double{basis[(kv_head * dim + c) * rank + j]};
  return out;
}

// index_keys [tokens][kv_heads][rank]: scale * code.
inline std::vector<double> low_rank_scores(const float* q, const std::vector<float>& index_keys, const float* basis,
                                           const Shape& shape, int rank, double scale) {
  const std::size_t width = static_cast<std::size_t>(shape.kv_heads) * rank;
  const std::size_t tokens = index_keys.size() / width;
  std::vector<std::vector<double>> scores;
  for (int h = 0; h < shape.heads; ++h) {
    const int g = shape.kv_head_of(h);
    const std::vector<double> projected = project(q + h * shape.dim, basis, g, shape.dim, rank);
    std::vector<double>& head = scores.emplace_back();
    for (std::size_t t = 0; t < tokens; ++t) {
      double dot = 0;
      for (int j = 0; j < rank; ++j) dot += projected[j] * double{index_keys[t * width + g * rank + j]};
      head.push_back(scale * dot);
    }
  }
  return mean_of_softmaxes(scores);
}

// [heads][blocks].
inline std::vector<std::vector<double>> quest_scores(const float* q, const std::vector<float>& keys, const Shape& shape,
                                                     int block_tokens, double scale) {
  const std::size_t width = static_cast<std::size_t>(shape.kv_heads) * shape.dim;
  const std::size_t tokens = keys.size() / width;
  std::vector<std::vector<double>> out(shape.heads);
  for (int h = 0; h < shape.heads; ++h)
    for (std::size_t begin = 0; begin < tokens; begin += block_tokens) {
      double score = 0;
      for (int c = 0; c < shape.dim; ++c) {
        double low = std::numeric_limits<double>::infinity();
        double high = -low;
        for (std::size_t t = begin; t < std::min(tokens, begin + block_tokens); ++t) {
          const double key = keys[t * width + shape.kv_head_of(h) * shape.dim + c];
          low = std::min(low, key);
          high = std::max(high, key);
        }
        const double x = q[h * shape.dim + c];
        score += std::max(x * low, x * high);
      }
      out[h].push_back(scale * score);
    }
  return out;
}

enum class Combine { kMax, kMean, kSoftmax };

// Over the candidates [first, last) only.
inline std::vector<double> combine_heads(const std::vector<std::vector<double>>& scores, std::size_t first,
                                         std::size_t last, Combine combine) {
  std::vector<std::vector<double>> open;
  for (const std::vector<double>& head : scores) open.emplace_back(head.begin() + first, head.begin() + last);
  if (combine == Combine::kSoftmax) return mean_of_softmaxes(open);
  std::vector<double> out = open[0];
  for (std::size_t h = 1; h < open.size(); ++h)
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = combine == Combine::kMax ? std::max(out[i], open[h][i]) : out[i] + open[h][i];
  if (combine == Combine::kMean)
    for (double& x : out) x /= static_cast<double>(open.size());
  return out;
}

}  // namespace hotset::reference
