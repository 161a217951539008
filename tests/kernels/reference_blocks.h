// Quantised blocks for tests: random ones, and a float64 reading of them in the manner of the format's definition
// (ggml's dequantize_row_*), independent of kernels/cpu/block_formats.cpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {

inline const std::vector<WeightType>& weight_types() {
  static const std::vector<WeightType> kTypes = {WeightType::kF32,  WeightType::kF16,  WeightType::kBF16,
                                                 WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0,
                                                 WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};
  return kTypes;
}
inline std::string name_of(WeightType type) {
  static const char* const kNames[] = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
  return kNames[static_cast<int>(type)];
}

inline double half_value(const std::uint8_t* p) {
  const int bits = p[0] | p[1] << 8;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction != 0 ? std::nan("") : std::numeric_limits<double>::infinity();
  return bits >> 15 != 0 ? -value : value;
}

// An f16 of magnitude 2^-8 ... 2^-4, or a subnormal now and then.
inline void put_random_half(Random& random, std::uint8_t* p) {
  const auto exponent = static_cast<int>(random.integer(0, 30) == 0 ? 0 : random.integer(7, 10));
  const int bits =
      static_cast<int>(random.integer(0, 1)) << 15 | exponent << 10 | static_cast<int>(random.integer(0, 1023));
  p[0] = static_cast<std::uint8_t>(bits);
  p[1] = static_cast<std::uint8_t>(bits >> 8);
}

struct TestMatrix {
  WeightType type;
  std::int64_t rows, cols;
  std::vector<std::byte> data;
  [[nodiscard]] MatrixView view() const { return {type, rows, cols, data}; }
};

inline TestMatrix random_matrix(Random& random, WeightType type, std::int64_t rows, std::int64_t cols) {
  const BlockFormat format = block_format(type);
  const std::int64_t blocks = rows * cols / format.elements;
  TestMatrix matrix{type, rows, cols, std::vector<std::byte>(static_cast<std::size_t>(blocks * format.bytes))};
  for (std::int64_t b = 0; b < blocks; ++b) {
    auto* p = reinterpret_cast<std::uint8_t*>(matrix.data.data() + b * format.bytes);
    for (int i = 0; i < format.bytes; ++i) p[i] = static_cast<std::uint8_t>(random.integer(0, 255));
    const float value = random.normal() * 0.1F;
    switch (type) {
      case WeightType::kF32: std::memcpy(p, &value, 4); break;
      case WeightType::kBF16: std::memcpy(p, reinterpret_cast<const char*>(&value) + 2, 2); break;
      case WeightType::kF16:
      case WeightType::kQ4_0:
      case WeightType::kQ8_0: put_random_half(random, p); break;
      case WeightType::kQ4_1:
      case WeightType::kQ4_K:
      case WeightType::kQ5_K:
        put_random_half(random, p);
        put_random_half(random, p + 2);
        break;
      case WeightType::kQ6_K: put_random_half(random, p + 208); break;
      case WeightType::kFp8Block: break;  // not of this backend
    }
  }
  return matrix;
}

inline void k_scale_min(int j, const std::uint8_t* q, int* scale, int* minimum) {
  if (j < 4) {
    *scale = q[j] & 63;
    *minimum = q[j + 4] & 63;
  } else {
    *scale = (q[j + 4] & 0xF) | ((q[j - 4] >> 6) << 4);
    *minimum = (q[j + 4] >> 4) | ((q[j] >> 6) << 4);
  }
}

inline void reference_k45(bool five, const std::uint8_t* p, double* y) {
  const double d = half_value(p);
  const double dmin = half_value(p + 2);
  const std::uint8_t* scales = p + 4;
  const std::uint8_t* qh = p + 16;
  const std::uint8_t* ql = p + (five ? 48 : 16);
  int is = 0;
  int u1 = 1;
  int u2 = 2;
  for (int j = 0; j < 256; j += 64) {
    int sc;
    int m;
    k_scale_min(is, scales, &sc, &m);
    for (int l = 0; l < 32; ++l) *y++ = d * sc * ((ql[l] & 0xF) + (five && (qh[l] & u1) ? 16 : 0)) - dmin * m;
    k_scale_min(is + 1, scales, &sc, &m);
    for (int l = 0; l < 32; ++l) *y++ = d * sc * ((ql[l] >> 4) + (five && (qh[l] & u2) ? 16 : 0)) - dmin * m;
    ql += 32;
    is += 2;
    u1 <<= 2;
    u2 <<= 2;
  }
}

inline void reference_q6_k(const std::uint8_t* p, double* y) {
  const double d = half_value(p + 208);
  const std::uint8_t* ql = p;
  const std::uint8_t* qh = p + 128;
  const auto* sc = reinterpret_cast<const std::int8_t*>(p + 192);
  for (int n = 0; n < 256; n += 128) {
    for (int l = 0; l < 32; ++l) {
      const int is = l / 16;
      const int q1 = ((ql[l] & 0xF) | (((qh[l] >> 0) & 3) << 4)) - 32;
      const int q2 = ((ql[l + 32] & 0xF) | (((qh[l] >> 2) & 3) << 4)) - 32;
      const int q3 = ((ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4)) - 32;
      const int q4 = ((ql[l + 32] >> 4) | (((qh[l] >> 6) & 3) << 4)) - 32;
      y[l] = d * sc[is] * q1;
      y[l + 32] = d * sc[is + 2] * q2;
      y[l + 64] = d * sc[is + 4] * q3;
      y[l + 96] = d * sc[is + 6] * q4;
    }
    y += 128;
    ql += 64;
    qh += 32;
    sc += 8;
  }
}

inline void reference_block(WeightType type, const std::uint8_t* p, double* y) {
  float f;
  switch (type) {
    case WeightType::kF32:
      std::memcpy(&f, p, 4);
      *y = f;
      return;
    case WeightType::kBF16:
      *y = std::bit_cast<float>(static_cast<std::uint32_t>(p[0] << 16) | static_cast<std::uint32_t>(p[1]) << 24);
      return;
    case WeightType::kF16: *y = half_value(p); return;
    case WeightType::kQ4_0:
      for (int i = 0; i < 16; ++i) {
        y[i] = half_value(p) * ((p[2 + i] & 0xF) - 8);
        y[i + 16] = half_value(p) * ((p[2 + i] >> 4) - 8);
      }
      return;
    case WeightType::kQ4_1:
      for (int i = 0; i < 16; ++i) {
        y[i] = half_value(p) * (p[4 + i] & 0xF) + half_value(p + 2);
        y[i + 16] = half_value(p) * (p[4 + i] >> 4) + half_value(p + 2);
      }
      return;
    case WeightType::kQ8_0:
      for (int i = 0; i < 32; ++i) y[i] = half_value(p) * static_cast<std::int8_t>(p[2 + i]);
      return;
    case WeightType::kQ4_K: return reference_k45(false, p, y);
    case WeightType::kQ5_K: return reference_k45(true, p, y);
    case WeightType::kQ6_K: return reference_q6_k(p, y);
    case WeightType::kFp8Block: return;
  }
}

// [rows, cols] in float64.
inline std::vector<double> reference_values(const TestMatrix& matrix) {
  const BlockFormat format = block_format(matrix.type);
  std::vector<double> out(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::size_t b = 0; b < out.size() / static_cast<std::size_t>(format.elements); ++b) {
    reference_block(
        matrix.type,
        reinterpret_cast<const std::uint8_t*>(matrix.data.data()) + b * static_cast<std::size_t>(format.bytes),
        out.data() + b * static_cast<std::size_t>(format.elements));
  }
  return out;
}

}  // namespace hotset::kernels
