#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hotset::model {
namespace {

// Slow channels (long wavelength) are divided by `factor`, fast ones stay, those between are blended.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < scaling.original_max_positions / scaling.high_freq_factor) return frequency;
  if (wavelength > scaling.original_max_positions / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// Channels between which YaRN blends: the ones that turn beta_fast and beta_slow times over the original length.
struct CorrectionRange {
  double low;
  double high;
};
CorrectionRange yarn_range(const ModelConfig& config) {
  const auto& scaling = config.rope_scaling;
  const double dim = config.rotary_dim;
  const auto channel = [&](double rotations) {
    return dim * std::log(scaling.original_max_positions / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.rope_theta));
  };
  CorrectionRange range{channel(scaling.beta_fast), channel(scaling.beta_slow)};
  if (scaling.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, dim - 1.0)};
  if (range.low == range.high) range.high += 0.001;
  return range;
}

double yarn_magnitude(const RopeScaling& scaling, double mscale) {
  return scaling.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scaling.factor) + 1.0;
}

double yarn_attention_factor(const RopeScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  const double mscale = scaling.mscale.value_or(0.0);
  const double all_dim = scaling.mscale_all_dim.value_or(0.0);
  if (mscale != 0.0 && all_dim != 0.0) return yarn_magnitude(scaling, mscale) / yarn_magnitude(scaling, all_dim);
  return yarn_magnitude(scaling, 1.0);
}

}  // namespace

RopeTable make_rope(const ModelConfig& config) {
  const auto& scaling = config.rope_scaling;
  const bool yarn = scaling.type == RopeType::kYarn;
  const CorrectionRange range = yarn ? yarn_range(config) : CorrectionRange{0.0, 1.0};
  RopeTable table;
  table.inv_freq.resize(static_cast<std::size_t>(config.rotary_dim / 2));
  for (std::size_t i = 0; i < table.inv_freq.size(); ++i) {
    const auto channel = static_cast<double>(i);
    double frequency = std::pow(config.rope_theta, -2.0 * channel / config.rotary_dim);
    switch (scaling.type) {
      case RopeType::kDefault: break;
      case RopeType::kLinear: frequency /= scaling.factor; break;
      case RopeType::kLlama3: frequency = llama3_frequency(frequency, scaling); break;
      case RopeType::kYarn: {
        const double ramp = std::clamp((channel - range.low) / (range.high - range.low), 0.0, 1.0);
        frequency = frequency / scaling.factor * ramp + frequency * (1.0 - ramp);
        break;
      }
    }
    if (!scaling.frequency_divisors.empty()) frequency /= scaling.frequency_divisors[i];
    table.inv_freq[i] = static_cast<float>(frequency);
  }
  if (yarn) table.attention_factor = static_cast<float>(yarn_attention_factor(scaling));
  return table;
}

double attention_scale(const ModelConfig& config) {
  const double plain = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const auto& scaling = config.rope_scaling;
  if (!config.latent || scaling.type != RopeType::kYarn) return plain;
  const double magnitude = yarn_magnitude(scaling, scaling.mscale_all_dim.value_or(0.0));
  return plain * magnitude * magnitude;
}

}  // namespace hotset::model
