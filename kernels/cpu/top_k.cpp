#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <array>

#include "core/half.h"

namespace hotset::kernels {
namespace {

// Unsigned, in the order of the scores: NaN is minus infinity, -0 is +0. Without branches: scores are in no order.
std::uint32_t order_key(float score) {
  std::uint32_t bits = bits_from_float(score);
  bits = (bits & 0x7fffffffU) > 0x7f800000U ? 0xff800000U : bits;
  bits = bits == 0x80000000U ? 0U : bits;
  return bits ^ (bits >> 31 != 0 ? 0xffffffffU : 0x80000000U);
}

// Taken are the keys above `key`, and the first `equal` of those that equal it.
struct Threshold {
  std::uint32_t key;
  std::int64_t equal;
};

// 0 < wanted < count. A digit a pass, the highest first: `key` holds the known digits of the wanted-th largest key,
// `left` says how many are wanted among the keys that begin with them. Those alone stay for the next pass.
Threshold find_threshold(const float* scores, std::int64_t count, std::int64_t wanted, std::uint32_t* keys) {
  constexpr int kDigitBits = 11;
  constexpr int kShifts[] = {21, 10, 0};  // digits of 11, 11 and 10 bits
  std::array<std::uint32_t, 1 << kDigitBits> histogram;
  for (std::int64_t i = 0; i < count; ++i) keys[i] = order_key(scores[i]);
  std::uint32_t key = 0;
  std::int64_t left = wanted;
  for (const int shift : kShifts) {
    const std::uint32_t digit_mask = shift == 0 ? (1U << 10) - 1U : (1U << kDigitBits) - 1U;
    histogram.fill(0);
    for (std::int64_t i = 0; i < count; ++i) ++histogram[keys[i] >> shift & digit_mask];
    std::uint32_t digit = digit_mask;
    while (histogram[digit] < left) left -= histogram[digit--];
    key |= digit << shift;
    // All keys that begin so are wanted.
    if (histogram[digit] == left) return key == 0 ? Threshold{0, left} : Threshold{key - 1, 0};
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      keys[kept] = keys[i];
      kept += keys[i] >> shift == key >> shift ? 1 : 0;
    }
    count = kept;
  }
  return {key, left};
}

}  // namespace

std::int64_t top_k_count(const TopKRow& row) {
  const std::int64_t first = std::min(row.first, row.length);
  const std::int64_t last = std::clamp(row.last, first, row.length);
  return std::min<std::int64_t>(std::max<std::int64_t>(row.k, first + row.length - last), row.length);
}

std::int32_t top_k_row(const TopKRow& row, std::uint32_t* scratch, std::int32_t* out) {
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
    Threshold threshold = find_threshold(row.scores + first, last - first, wanted, scratch);
    const std::int32_t* const end = next + wanted;
    for (std::int64_t i = first; next != end; ++i) {
      const std::uint32_t key = order_key(row.scores[i]);
      const bool equal = key == threshold.key;
      *next = static_cast<std::int32_t>(i);
      next += key > threshold.key || (equal && threshold.equal > 0) ? 1 : 0;
      threshold.equal -= equal ? 1 : 0;
    }
  }
  take(last, row.length);
  return static_cast<std::int32_t>(total);
}

}  // namespace hotset::kernels
