#include "core/kv_metadata_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/half.h"
#include "core/kv_format.h"

namespace hotset {
namespace {

constexpr float kMostCode = 7.0F;
constexpr float kMostF16 = 65504.0F;
constexpr std::uint16_t kNanF16 = 0x7e00;

// To nearest, ties to even, of 0 ... 65504.
std::uint16_t positive_f32_to_f16(float value) {
  const std::uint32_t bits = bits_from_float(value);
  if (bits >= bits_from_float(0x1p-14F)) {
    return static_cast<std::uint16_t>((bits - (112U << 23) + 0xfffU + (bits >> 13 & 1U)) >> 13);
  }
  // Next to 0.5 a float's step is 2^-24, that of a subnormal float16: the sum rounds.
  return static_cast<std::uint16_t>(bits_from_float(value + 0.5F) - bits_from_float(0.5F));
}

// The next bf16 at or below the value; NaN stays NaN, what lies beyond the largest becomes infinite.
std::uint16_t bf16_below(float value) {
  if (value != value) return f32_to_bf16(value);
  const std::uint32_t bits = bits_from_float(value);
  const bool away_from_zero = bits >> 31 != 0 && (bits & 0xffffU) != 0;
  return static_cast<std::uint16_t>((bits >> 16) + (away_from_zero ? 1U : 0U));
}
std::uint16_t bf16_above(float value) { return bf16_below(-value) ^ 0x8000U; }

float load_f32(const std::byte* from) {
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
void store_f32(float value, std::byte* to) { std::memcpy(to, &value, sizeof value); }
std::uint16_t load_u16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
void store_u16(std::uint16_t value, std::byte* to) { std::memcpy(to, &value, sizeof value); }

std::int64_t fp8_scales_offset(const MetadataGeometry& geometry, std::int64_t offset) {
  return kPageTokens * geometry.dim + offset * 4 * fp8_scales(geometry.dim);
}

struct LowRankPlace {
  std::int64_t codes, scale;  // bytes from the page's begin
};
LowRankPlace low_rank_place(const MetadataGeometry& geometry, std::int64_t kv_head, std::int64_t offset) {
  const std::int64_t part = kv_head * geometry.low_rank_head_bytes();
  const std::int64_t code_bytes = geometry.rank / 2;
  return {part + offset * code_bytes, part + kPageTokens * code_bytes + 2 * offset};
}

std::int64_t bounds_offset(const MetadataGeometry& geometry, std::int64_t kv_head, std::int64_t block) {
  return (block * geometry.kv_heads + kv_head) * 2 * geometry.dim * geometry.bounds_bytes();
}

}  // namespace

void encode_index_key(const MetadataGeometry& geometry, const float* key, std::byte* page, std::int64_t offset) {
  std::byte* const to = page + offset * geometry.dim * kv_dtype_bytes(geometry.dtype);
  switch (geometry.dtype) {
    case KvDType::kF32: std::memcpy(to, key, static_cast<std::size_t>(geometry.dim) * sizeof(float)); return;
    case KvDType::kBF16:
      for (std::int64_t c = 0; c < geometry.dim; ++c) store_u16(f32_to_bf16(key[c]), to + 2 * c);
      return;
    case KvDType::kFp8: encode_fp8(key, geometry.dim, to, page + fp8_scales_offset(geometry, offset)); return;
  }
}

void decode_index_key(const MetadataGeometry& geometry, const std::byte* page, std::int64_t offset, float* key) {
  const std::byte* const from = page + offset * geometry.dim * kv_dtype_bytes(geometry.dtype);
  switch (geometry.dtype) {
    case KvDType::kF32: std::memcpy(key, from, static_cast<std::size_t>(geometry.dim) * sizeof(float)); return;
    case KvDType::kBF16:
      for (std::int64_t c = 0; c < geometry.dim; ++c) key[c] = bf16_to_f32(load_u16(from + 2 * c));
      return;
    case KvDType::kFp8: decode_fp8(from, page + fp8_scales_offset(geometry, offset), geometry.dim, key); return;
  }
}

void encode_low_rank_key(const MetadataGeometry& geometry, std::int64_t kv_head, const float* x, std::byte* page,
                         std::int64_t offset) {
  const LowRankPlace place = low_rank_place(geometry, kv_head, offset);
  float most = 0.0F;
  bool nan = false;
  for (std::int64_t i = 0; i < geometry.rank; ++i) {
    most = std::max(most, std::fabs(x[i]));
    nan |= x[i] != x[i];
  }
  const std::uint16_t scale = nan ? kNanF16 : positive_f32_to_f16(std::min(most / kMostCode, kMostF16));
  const float divisor = f16_to_f32(scale);
  const auto code = [&](float value) {
    if (nan || divisor == 0.0F) return 8U;
    return static_cast<unsigned>(std::clamp(std::nearbyint(value / divisor), -kMostCode, kMostCode) + 8.0F);
  };
  for (std::int64_t i = 0; i < geometry.rank; i += 2) {
    page[place.codes + i / 2] = static_cast<std::byte>(code(x[i]) | code(x[i + 1]) << 4);
  }
  store_u16(scale, page + place.scale);
}

void decode_low_rank_key(const MetadataGeometry& geometry, std::int64_t kv_head, const std::byte* page,
                         std::int64_t offset, float* x) {
  const LowRankPlace place = low_rank_place(geometry, kv_head, offset);
  const float scale = f16_to_f32(load_u16(page + place.scale));
  for (std::int64_t i = 0; i < geometry.rank; ++i) {
    const auto pair = std::to_integer<int>(page[place.codes + i / 2]);
    x[i] = scale * static_cast<float>((i % 2 == 0 ? pair & 15 : pair >> 4) - 8);
  }
}

void widen_bounds(const MetadataGeometry& geometry, const float* keys, std::byte* page, std::int64_t offset) {
  const std::int64_t bytes = geometry.bounds_bytes();
  const bool starts = offset % geometry.block_tokens == 0;
  for (std::int64_t head = 0; head < geometry.kv_heads; ++head) {
    std::byte* minimum = page + bounds_offset(geometry, head, offset / geometry.block_tokens);
    std::byte* maximum = minimum + geometry.dim * bytes;
    const float* const key = keys + head * geometry.dim;
    for (std::int64_t c = 0; c < geometry.dim; ++c, minimum += bytes, maximum += bytes) {
      // fmin and fmax leave NaN out. Rounding is monotonic: bounds of rounded bounds are those of the keys, rounded.
      if (bytes == 4) {
        store_f32(starts ? key[c] : std::fmin(load_f32(minimum), key[c]), minimum);
        store_f32(starts ? key[c] : std::fmax(load_f32(maximum), key[c]), maximum);
      } else {
        store_u16(bf16_below(starts ? key[c] : std::fmin(bf16_to_f32(load_u16(minimum)), key[c])), minimum);
        store_u16(bf16_above(starts ? key[c] : std::fmax(bf16_to_f32(load_u16(maximum)), key[c])), maximum);
      }
    }
  }
}

void decode_bounds(const MetadataGeometry& geometry, std::int64_t kv_head, const std::byte* page, std::int64_t block,
                   float* minimum, float* maximum) {
  const std::byte* from = page + bounds_offset(geometry, kv_head, block);
  for (std::int64_t c = 0; c < 2 * geometry.dim; ++c, from += geometry.bounds_bytes()) {
    float& to = c < geometry.dim ? minimum[c] : maximum[c - geometry.dim];
    to = geometry.bounds_bytes() == 4 ? load_f32(from) : bf16_to_f32(load_u16(from));
  }
}

}  // namespace hotset
