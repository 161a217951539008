#include "kernels/cpu/rope_table.h"

#include <algorithm>
#include <cmath>

namespace hotset::kernels {

void RopeTable::prepare(const RopeParams& params) {
  const std::int64_t half = params.rotary_dim / 2;
  if (half == half_ && params.attention_factor == factor_ &&
      std::equal(positions_.begin(), positions_.end(), params.positions, params.positions + params.rows) &&
      std::equal(inv_freq_.begin(), inv_freq_.end(), params.inv_freq, params.inv_freq + half)) {
    return;
  }
  half_ = half;
  factor_ = params.attention_factor;
  positions_.assign(params.positions, params.positions + params.rows);
  inv_freq_.assign(params.inv_freq, params.inv_freq + half);
  cos_.resize(static_cast<std::size_t>(params.rows * half));
  sin_.resize(cos_.size());
  for (std::int64_t row = 0; row < params.rows; ++row) {
    for (std::int64_t c = 0; c < half; ++c) {
      const double angle = static_cast<double>(params.positions[row]) * static_cast<double>(params.inv_freq[c]);
      const auto at = static_cast<std::size_t>(row * half + c);
      cos_[at] = static_cast<float>(std::cos(angle)) * factor_;
      sin_[at] = static_cast<float>(std::sin(angle)) * factor_;
    }
  }
}

}  // namespace hotset::kernels
