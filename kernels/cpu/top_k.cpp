#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/half.h"

namespace hotset::kernels {
namespace {

// Unsigned, in the order of the scores: NaN is minus infinity, -0 is +0.
std::uint32_t order_key(float score) {
  if (score != score) score = -__builtin_inff();
  if (score == 0.0F) score = 0.0F;
  const std::uint32_t bits = bits_from_float(score);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

// Taken are the keys above `key`, and the first `equal` of those that equal it.
struct Threshold {
  std::uint32_t key;
  std::int64_t equal;
};

// 0 < wanted < count. A digit a pass, the highest first: `key` holds the known digits of the wanted-th largest key,
// `left` says how many are wanted among the keys that begin with them.
Threshold find_threshold(const float* scores, std::int64_t count, std::int64_t wanted) {
  constexpr int kDigitBits = 11;
  constexpr int kShifts[] = {21, 10, 0};  // digits of 11, 11 and 10 bits
  std::array<std::uint32_t, 1 << kDigitBits> histogram;
  std::uint32_t key = 0;
  std::uint32_t known = 0;
  std::int64_t left = wanted;
  for (const int shift : kShifts) {
    const std::uint32_t digit_mask = shift == 0 ? (1U << 10) - 1U : (1U << kDigitBits) - 1U;
    histogram.fill(0);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t other = order_key(scores[i]);
      if ((other & known) == key) ++histogram[other >> shift & digit_mask];
    }
    std::uint32_t digit = digit_mask;
    while (histogram[digit] < left) left -= histogram[digit--];
    key |= digit << shift;
    // All keys that begin so are wanted.
    if (histogram[digit] == left) return {key == 0 ? 0 : key - 1, key == 0 ? count : 0};
    known = ~0U << shift;
  }
  return {key, left};
}

}  // namespace

std::int64_t top_k_count(const TopKRow& row) {
  const std::int64_t first = std::min(row.first, row.length);
  const std::int64_t last = std::clamp(row.last, first, row.length);
  return std::min<std::int64_t>(std::max<std::int64_t>(row.k, first + row.length - last), row.length);
}

std::int32_t top_k_row(const TopKRow& row, std::int32_t* out) {
  const std::int64_t first = std::min(row.first, row.length);
  const std::int64_t last = std::clamp(row.last, first, row.length);
  const std::int64_t total = top_k_count(row);
  std::int32_t* next = out;
  const auto take = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) *next++ = static_cast<std::int32_t>(i);
  };
  if (total == row.length) {
    take(0, row.length);
    return static_cast<std::int32_t>(total);
  }
  take(0, first);
  const std::int64_t wanted = total - first - (row.length - last);
  if (wanted > 0) {
    Threshold threshold = find_threshold(row.scores + first, last - first, wanted);
    const std::int32_t* const end = next + wanted;
    for (std::int64_t i = first; next != end; ++i) {
      const std::uint32_t key = order_key(row.scores[i]);
      if (key > threshold.key || (key == threshold.key && threshold.equal-- > 0)) {
        *next++ = static_cast<std::int32_t>(i);
      }
    }
  }
  take(last, row.length);
  return static_cast<std::int32_t>(total);
}

}  // namespace hotset::kernels
