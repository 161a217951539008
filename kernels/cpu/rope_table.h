// Cosines and sines of one call's angles, kept until the arguments change: in one forward pass, Q and K of every layer
// ask for the same ones.
//
// Owner: the backend. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace hotset::kernels {

class RopeTable {
 public:
  // Computes the tables unless positions, frequencies and factor are those of the last call. Angles are taken in double
  // precision: good for every position below 2^31.
  void prepare(const RopeParams& params);

  // [rotary_dim / 2], times attention_factor.
  [[nodiscard]] const float* cos(std::int64_t row) const { return cos_.data() + row * half_; }
  [[nodiscard]] const float* sin(std::int64_t row) const { return sin_.data() + row * half_; }

 private:
  std::int64_t half_ = 0;
  float factor_ = 0.0F;
  std::vector<std::int64_t> positions_;
  std::vector<float> inv_freq_;
  std::vector<float> cos_, sin_;  // [rows, half]
};

}  // namespace hotset::kernels
