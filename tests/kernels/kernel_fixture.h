// What the kernel tests share: a seeded generator, every instruction set of this machine, and
// comparison bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/seed.h"

namespace hotset::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Seeded by test_seed().
class Random {
 public:
  float normal() { return normal_(engine_); }
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  std::vector<float> normals(std::int64_t count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) x = normal();
    return out;
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_{test_seed()};
  std::normal_distribution<float> normal_;
};

inline std::vector<CpuIsa> isas() {
  std::vector<CpuIsa> out;
  for (int isa = 0; isa <= static_cast<int>(detect_cpu_isa()); ++isa) out.push_back(static_cast<CpuIsa>(isa));
  return out;
}

// Every instruction set with 1 and with 3 threads; the first one is the plain single-threaded one.
inline std::vector<std::unique_ptr<Backend>> backends() {
  std::vector<std::unique_ptr<Backend>> out;
  for (const CpuIsa isa : isas()) {
    for (const int threads : {1, 3}) out.push_back(make_cpu_backend(threads, isa));
  }
  return out;
}

// NaN equals NaN: which payload comes out is the processor's choice.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

inline std::vector<float> slice(const std::vector<float>& from, std::int64_t begin, std::int64_t count) {
  return {from.begin() + begin, from.begin() + begin + count};
}

}  // namespace hotset::kernels
