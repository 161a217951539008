// Weights of tokens as integers, and the random number.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/block_team.cuh"

namespace hotset::kernels::cuda::sampling {

inline constexpr double kWeightOne = 17592186044416.0;  // 2^44

// exp((value - largest) / temperature) in units of 2^-44; 0 from 2^-45 of the largest down.
class Weights {
 public:
  __device__ Weights(float largest, float temperature)
      : largest_(static_cast<double>(largest)), scale_(1.4426950408889634 / static_cast<double>(temperature)) {}

  [[nodiscard]] __device__ __forceinline__ Weight of(float value) const {
    const double exponent = (static_cast<double>(value) - largest_) * scale_;
    // Without branches, so that several tokens' chains overlap. What is cut off here becomes 0 below.
    const double t = fmax(exponent, -100.0);
    // 2^t = 2^n * 2^r, |r| <= 1/2. Adding 1.5 * 2^52 rounds to a whole number, which stands in the low bits then.
    const double shifted = t + 6755399441055744.0;
    const double r = t - (shifted - 6755399441055744.0);
    const int n = __double2loint(shifted);
    // Taylor of 2^r: what is left out is below 2^-47 of it.
    double p = 4.44553827187081e-10;
    p = fma(p, r, 7.054911620801121e-09);
    p = fma(p, r, 1.0178086009239696e-07);
    p = fma(p, r, 1.3215486790144305e-06);
    p = fma(p, r, 1.5252733804059838e-05);
    p = fma(p, r, 0.00015403530393381606);
    p = fma(p, r, 0.0013333558146428441);
    p = fma(p, r, 0.009618129107628477);
    p = fma(p, r, 0.055504108664821576);
    p = fma(p, r, 0.2402265069591007);
    p = fma(p, r, 0.6931471805599453);
    p = fma(p, r, 1.0);
    // Adding 2^52 rounds to a whole number, too.
    const double whole = fma(p, __hiloint2double((1023 + 44 + n) << 20, 0), 4503599627370496.0);
    const Weight weight = static_cast<Weight>(__double_as_longlong(whole)) & ((Weight{1} << 52) - 1);
    return exponent < 0 ? weight : Weight{1} << 44;  // also infinity against itself
  }

 private:
  double largest_;
  double scale_;
};

// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The first 64 bits.
__device__ inline Weight philox(std::uint64_t seed, std::uint64_t position) {
  uint4 counter = {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0};
  uint2 key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, counter.x);
    const std::uint32_t low0 = 0xD2511F53U * counter.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, counter.z);
    const std::uint32_t low1 = 0xCD9E8D57U * counter.z;
    counter = {high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key.x += 0x9E3779B9U;
    key.y += 0xBB67AE85U;
  }
  return Weight{counter.y} << 32 | counter.x;
}

}  // namespace hotset::kernels::cuda::sampling
