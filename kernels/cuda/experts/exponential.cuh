// exp(x) in float32 with the bits of the C library (glibc 2.28 and later, on processors with fused multiply-add): a
// choice between experts must not hang on whose exponential it was.
// 2^(k/32) from a table, 2^(r/32) by a polynomial of third degree in double, |r| <= 1/2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace hotset::kernels::cuda {

__host__ __device__ inline double exponential_bits(std::uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// table[i]: the bits of 2^(i/32), minus i << 47. x may be infinite, not NaN.
__host__ __device__ inline float library_exponential(float x, const std::uint64_t* table) {
  if (x > 0x1.62e42ep6F) return exponential_bits(0x7ff0000000000000ULL);
  if (x < -0x1.9fe368p6F) return 0.0F;
  constexpr double kThird = 0x1.c6af84b912394p-20;  // polynomial of 2^(r/32)
  constexpr double kSecond = 0x1.ebfce50fac4f3p-13;
  constexpr double kFirst = 0x1.62e42ff0c52d6p-6;
  constexpr double kSteps = 0x1.71547652b82fep+5;  // 32 / ln 2
  constexpr double kRound = 0x1.8p+52;
  const double scaled = kSteps * static_cast<double>(x);
  const double shifted = scaled + kRound;
#ifdef __CUDA_ARCH__
  const auto step = static_cast<std::uint64_t>(__double_as_longlong(shifted));
#else
  std::uint64_t step;
  std::memcpy(&step, &shifted, sizeof step);
#endif
  const double rest = fma(kSteps, static_cast<double>(x), -(shifted - kRound));
  const double scale = exponential_bits(table[step % 32] + (step << 47));
  const double high = fma(kThird, rest, kSecond);
  const double low = fma(kFirst, rest, 1.0);
  return static_cast<float>(fma(high, rest * rest, low) * scale);
}

}  // namespace hotset::kernels::cuda
