// Float values on the device in either element type, with canaries behind them.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "core/half.h"
#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

// As the type rounds them.
inline std::vector<float> rounded(std::vector<float> values, ActivationType type) {
  if (type == ActivationType::kBF16) {
    for (float& x : values) x = bf16_to_f32(f32_to_bf16(x));
  }
  return values;
}

class DeviceValues {
 public:
  // `offset`: elements before the values, to break their alignment.
  DeviceValues(const std::vector<float>& values, ActivationType type, std::size_t offset = 0)
      : type_(type), offset_(offset), count_(values.size()), memory_((offset + count_ + kCanaries) * bytes_of_one()) {
    std::vector<float> all(offset, kCanary);
    all.insert(all.end(), values.begin(), values.end());
    all.insert(all.end(), kCanaries, kCanary);
    if (type == ActivationType::kF32) {
      memory_.upload(reinterpret_cast<const std::byte*>(all.data()), memory_.size());
      return;
    }
    std::vector<std::uint16_t> half(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) half[i] = f32_to_bf16(all[i]);
    memory_.upload(reinterpret_cast<const std::byte*>(half.data()), memory_.size());
  }

  [[nodiscard]] void* data() const { return memory_.data() + offset_ * bytes_of_one(); }
  // Waits for the device; a changed canary fails the test.
  [[nodiscard]] std::vector<float> values() const {
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<float> all(offset_ + count_ + kCanaries);
    if (type_ == ActivationType::kF32) {
      memory_.download(reinterpret_cast<std::byte*>(all.data()), memory_.size());
    } else {
      std::vector<std::uint16_t> half(all.size());
      memory_.download(reinterpret_cast<std::byte*>(half.data()), memory_.size());
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = bf16_to_f32(half[i]);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i >= offset_ && i < offset_ + count_) continue;
      EXPECT_EQ(all[i], kCanary) << "written outside, element " << static_cast<std::ptrdiff_t>(i - offset_) << " of "
                                 << count_;
    }
    return {all.begin() + static_cast<std::ptrdiff_t>(offset_),
            all.begin() + static_cast<std::ptrdiff_t>(offset_ + count_)};
  }

 private:
  static constexpr std::size_t kCanaries = 64;
  static constexpr float kCanary = -77.0F;  // exact in bfloat16
  [[nodiscard]] std::size_t bytes_of_one() const { return type_ == ActivationType::kF32 ? 4 : 2; }

  ActivationType type_;
  std::size_t offset_;
  std::size_t count_;
  DeviceBuffer<std::byte> memory_;
};

}  // namespace hotset::kernels::cuda
