// Sizes of the KV cache: the only place where tokens, rows and pages become bytes. All in 64 bits. How numbers are
// written into rows and metadata is in core/kv_format.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/ids.h"

namespace hotset {

inline constexpr std::int64_t kPageTokens = 64;         // tokens of a page, in every tier
inline constexpr std::int64_t kFp8ScaleChannels = 128;  // channels that share a scale; the last group may be smaller
inline constexpr std::int64_t kFp8RowAlignment = 16;    // FP8 rows and their parts stay addressable by 16-byte loads

enum class KvDType { kF32, kBF16, kFp8 };

// Bytes of one number outside FP8's scaled groups.
[[nodiscard]] constexpr std::int64_t kv_dtype_bytes(KvDType dtype) {
  return dtype == KvDType::kF32 ? 4 : dtype == KvDType::kBF16 ? 2 : 1;
}

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }
[[nodiscard]] constexpr std::int64_t pages_for_tokens(std::int64_t tokens) { return ceil_div(tokens, kPageTokens); }
[[nodiscard]] constexpr std::int64_t fp8_scales(std::int64_t channels) { return ceil_div(channels, kFp8ScaleChannels); }

// One token's row in one layer. K is stored after RoPE, in half-split channel order.
// - kGrouped: K of every KV head, then V of every KV head: [kv_heads][key_dim], [kv_heads][value_dim] in `dtype`.
//   kFp8: the same in e4m3, then K's scales [kv_heads][fp8_scales(key_dim)], then V's, float32; padded to 16 bytes.
// - kLatent (MLA): kv_heads is 1 and the value is the first value_dim channels of the key: latent, then the rope part.
//   kFp8: latent in e4m3, its scales [fp8_scales(value_dim)] float32, the rope part in bf16; padded to 16 bytes (656
//   bytes for 512 + 64).
struct KvGeometry {
  enum class Layout { kGrouped, kLatent };

  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  Layout layout = Layout::kGrouped;
  KvDType dtype = KvDType::kF32;

  [[nodiscard]] constexpr std::int64_t key_elements() const { return std::int64_t{kv_heads} * key_dim; }
  [[nodiscard]] constexpr std::int64_t value_elements() const { return std::int64_t{kv_heads} * value_dim; }

  // Offsets inside a row, in bytes. Of V: 0 in latent rows. Of scales and of a latent's rope part: kFp8 only.
  [[nodiscard]] constexpr std::int64_t value_offset_bytes() const {
    return layout == Layout::kLatent ? 0 : key_elements() * kv_dtype_bytes(dtype);
  }
  [[nodiscard]] constexpr std::int64_t key_scales_offset_bytes() const {
    return layout == Layout::kLatent ? round_up(value_dim, 4) : round_up(key_elements() + value_elements(), 4);
  }
  [[nodiscard]] constexpr std::int64_t value_scales_offset_bytes() const {
    return layout == Layout::kLatent ? key_scales_offset_bytes()
                                     : key_scales_offset_bytes() + fp8_scales(key_dim) * kv_heads * 4;
  }
  [[nodiscard]] constexpr std::int64_t rope_offset_bytes() const {
    return key_scales_offset_bytes() + 4 * fp8_scales(value_dim);
  }
  [[nodiscard]] constexpr std::int64_t row_bytes() const {
    if (dtype != KvDType::kFp8) {
      return (key_elements() + (layout == Layout::kLatent ? 0 : value_elements())) * kv_dtype_bytes(dtype);
    }
    const std::int64_t end = layout == Layout::kLatent
                                 ? rope_offset_bytes() + 2 * (std::int64_t{key_dim} - value_dim)
                                 : value_scales_offset_bytes() + fp8_scales(value_dim) * kv_heads * 4;
    return round_up(end, kFp8RowAlignment);
  }
  [[nodiscard]] constexpr std::int64_t page_bytes() const { return kPageTokens * row_bytes(); }
  // One token in every layer.
  [[nodiscard]] constexpr std::int64_t token_bytes() const { return layers * row_bytes(); }

  constexpr bool operator==(const KvGeometry&) const = default;
};

// What a selection algorithm keeps of the tokens of a page in one layer. It travels with the page through every tier.
// - kIndexKeys (DSA): [64][dim] in `dtype`; kFp8: e4m3 [64][dim], then scales [64][fp8_scales(dim)] float32 (132 bytes
//   a token for dim 128).
// - kLowRankKeys: for every KV head 4-bit codes [64][rank / 2] (even channel in the low nibble, value + 8), then scales
//   [64] float16: rank / 2 + 2 bytes a token and KV head, whatever the rows' type.
// - kBlockBounds (Quest): for every block of the page [kv_heads][minimum, maximum][dim], float32 for kF32 rows, else
//   bf16 rounded outward.
struct MetadataGeometry {
  enum class Kind { kNone, kIndexKeys, kLowRankKeys, kBlockBounds };

  Kind kind = Kind::kNone;
  std::int32_t kv_heads = 0;      // kIndexKeys: 1
  std::int32_t dim = 0;           // channels of a key
  std::int32_t rank = 0;          // kLowRankKeys; even
  std::int32_t block_tokens = 1;  // kBlockBounds; divides 64
  KvDType dtype = KvDType::kF32;

  [[nodiscard]] constexpr std::int64_t bounds_bytes() const { return dtype == KvDType::kF32 ? 4 : 2; }  // of a number
  // Of one KV head's part of a kLowRankKeys page.
  [[nodiscard]] constexpr std::int64_t low_rank_head_bytes() const {
    return kPageTokens * (std::int64_t{rank} / 2 + 2);
  }
  [[nodiscard]] constexpr std::int64_t page_bytes() const {
    switch (kind) {
      case Kind::kNone: return 0;
      case Kind::kIndexKeys:
        return kPageTokens * (dim * kv_dtype_bytes(dtype) + (dtype == KvDType::kFp8 ? 4 * fp8_scales(dim) : 0));
      case Kind::kLowRankKeys: return kv_heads * low_rank_head_bytes();
      case Kind::kBlockBounds: return kPageTokens / block_tokens * 2 * kv_heads * dim * bounds_bytes();
    }
    return 0;
  }

  constexpr bool operator==(const MetadataGeometry&) const = default;
};

// Rows and metadata of a server's KV cache. Layers without an indexer of their own keep no metadata.
struct KvLayout {
  KvGeometry rows;
  MetadataGeometry metadata;
  std::vector<std::int32_t> metadata_of_layer;  // [layers]: 0, 1, 2, ... of the layers that keep metadata; -1: none
  std::int32_t metadata_layers = 0;

  // Every layer keeps metadata, or none does (kind kNone).
  [[nodiscard]] static KvLayout uniform(const KvGeometry& rows, const MetadataGeometry& metadata = {});

  // Of 64 tokens in all layers.
  [[nodiscard]] std::int64_t metadata_page_bytes() const { return metadata_layers * metadata.page_bytes(); }

  bool operator==(const KvLayout&) const = default;
};

inline KvLayout KvLayout::uniform(const KvGeometry& rows, const MetadataGeometry& metadata) {
  KvLayout layout{.rows = rows, .metadata = metadata, .metadata_of_layer = {}, .metadata_layers = 0};
  const bool kept = metadata.kind != MetadataGeometry::Kind::kNone;
  for (std::int32_t layer = 0; layer < rows.layers; ++layer) layout.metadata_of_layer.push_back(kept ? layer : -1);
  layout.metadata_layers = kept ? rows.layers : 0;
  return layout;
}

[[nodiscard]] constexpr SlotId slot_of(PageId page, std::int64_t offset) {
  return SlotId{page.value() * kPageTokens + offset};
}
[[nodiscard]] constexpr HostSlot host_slot_of(HostPage page, std::int64_t offset) {
  return HostSlot{page.value() * kPageTokens + offset};
}

}  // namespace hotset
