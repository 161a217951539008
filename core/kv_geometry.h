// Sizes of the KV cache: the only place where tokens, rows and pages become bytes. All in 64 bits.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/ids.h"

namespace hotset {

inline constexpr std::int64_t kPageTokens = 64;  // tokens of a page, in every tier

enum class KvDType { kF32, kBF16 };

[[nodiscard]] constexpr std::int64_t kv_dtype_bytes(KvDType dtype) { return dtype == KvDType::kF32 ? 4 : 2; }

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
[[nodiscard]] constexpr std::int64_t pages_for_tokens(std::int64_t tokens) { return ceil_div(tokens, kPageTokens); }

// A grouped-query row: K of every KV head, then V of every KV head: [2][kv_heads][head_dim] in `dtype`.
// K is stored after RoPE, in half-split channel order.
struct KvGeometry {
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  KvDType dtype = KvDType::kF32;

  [[nodiscard]] constexpr std::int64_t half_row_elements() const { return std::int64_t{kv_heads} * head_dim; }
  [[nodiscard]] constexpr std::int64_t row_bytes() const { return 2 * half_row_elements() * kv_dtype_bytes(dtype); }
  [[nodiscard]] constexpr std::int64_t value_offset_bytes() const {
    return half_row_elements() * kv_dtype_bytes(dtype);
  }
  [[nodiscard]] constexpr std::int64_t page_bytes() const { return kPageTokens * row_bytes(); }
  // One token in every layer.
  [[nodiscard]] constexpr std::int64_t token_bytes() const { return layers * row_bytes(); }

  constexpr bool operator==(const KvGeometry&) const = default;
};

[[nodiscard]] constexpr SlotId slot_of(PageId page, std::int64_t offset) {
  return SlotId{page.value() * kPageTokens + offset};
}
[[nodiscard]] constexpr HostSlot host_slot_of(HostPage page, std::int64_t offset) {
  return HostSlot{page.value() * kPageTokens + offset};
}

}  // namespace hotset
