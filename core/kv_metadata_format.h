// How numbers are written into metadata pages: the one definition, which every backend follows bit for bit.
// MetadataGeometry (core/kv_geometry.h) says where they lie.
//
// - kIndexKeys: as the keys of rows (core/kv_format.h): f32, bf16, or FP8 with a scale for every 128 channels.
// - kLowRankKeys: x [rank] is the projected key; scale = float16(max|x| / 7), at most 65504; code = round-half-even(x /
//   scale) within -7 ... 7, each operation rounded once in float32; x' = scale * code. So
//     |x - x'| <= scale / 2                  for 7 * 2^-14 <= max|x| <= 65504 * 7,
//     |x - x'| <= max(scale / 2, 7 * 2^-25)  below (the scale is a subnormal float16; max|x| < 7 * 2^-25 gives zeros).
//   A NaN in x: scale NaN, codes 0; the token decodes to NaN. Infinities: the largest scale, codes +-7.
// - kBlockBounds: per channel minimum <= every key of the block <= maximum, however they are rounded: f32 as they are,
//   bf16 rounded down and up, off by less than 2^-7 of the value (2^-133 near zero). NaN keys are left out; a channel
//   with nothing else has NaN bounds.
//
// Equal inputs give equal bytes. Pages need no alignment here. Offsets are tokens in the page, 0 ... 63. Any thread,
// one at a time for a page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"

namespace hotset {

// key [dim].
void encode_index_key(const MetadataGeometry& geometry, const float* key, std::byte* page, std::int64_t offset);
void decode_index_key(const MetadataGeometry& geometry, const std::byte* page, std::int64_t offset, float* key);

// x [rank]: of one KV head.
void encode_low_rank_key(const MetadataGeometry& geometry, std::int64_t kv_head, const float* x, std::byte* page,
                         std::int64_t offset);
void decode_low_rank_key(const MetadataGeometry& geometry, std::int64_t kv_head, const std::byte* page,
                         std::int64_t offset, float* x);

// keys [kv_heads * dim]. The first token of a block starts its bounds, the others widen them: tokens come in order.
void widen_bounds(const MetadataGeometry& geometry, const float* keys, std::byte* page, std::int64_t offset);
// minimum, maximum [dim]; block: of the page, 0 ... 64 / block_tokens - 1.
void decode_bounds(const MetadataGeometry& geometry, std::int64_t kv_head, const std::byte* page, std::int64_t block,
                   float* minimum, float* maximum);

}  // namespace hotset
