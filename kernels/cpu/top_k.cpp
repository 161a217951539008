#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/half.h"

namespace hotset::kernels {
namespace {

// Unsigned, in the order of the scores: NaN is minus infinity, -0 is +0.
std::uint32_t order_key(float score) {
  if (score != score) score = -__builtin_inff();
  if (score == 0.0F) score = 0.0F;
  const std::uint32_t bits = bits_from_float(score);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace

std::int32_t top_k_row(const float* scores, std::int64_t length, std::int32_t k, std::int32_t* out) {
  const auto wanted = static_cast<std::int32_t>(std::min<std::int64_t>(k, length));
  if (wanted == length) {
    for (std::int32_t i = 0; i < wanted; ++i) out[i] = i;
    return wanted;
  }
  if (wanted == 0) return 0;

  // The k-th largest key, 8 bits a pass: `prefix` are the bits that are known, `left` how many are wanted among the
  // keys with that prefix.
  std::uint32_t prefix = 0;
  std::int64_t left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<std::int64_t, 256> histogram{};
    const std::uint32_t known = shift == 24 ? 0U : ~0U << (shift + 8);
    for (std::int64_t i = 0; i < length; ++i) {
      const std::uint32_t key = order_key(scores[i]);
      if ((key & known) == prefix) ++histogram[key >> shift & 255U];
    }
    std::uint32_t digit = 255;
    while (histogram[digit] < left) left -= histogram[digit--];
    prefix |= digit << shift;
  }

  std::int32_t count = 0;
  for (std::int64_t i = 0; count < wanted; ++i) {
    const std::uint32_t key = order_key(scores[i]);
    if (key > prefix || (key == prefix && left-- > 0)) out[count++] = static_cast<std::int32_t>(i);
  }
  return wanted;
}

}  // namespace hotset::kernels
