#include "core/kv_geometry.h"

#include <gtest/gtest.h>

#include "core/checked_math.h"

namespace hotset {
namespace {

using Layout = KvGeometry::Layout;
using Kind = MetadataGeometry::Kind;

TEST(KvGeometry, SizesOfTheDefaultModel) {
  const KvGeometry geometry{30, 3, 64, 64, Layout::kGrouped, KvDType::kF32};
  EXPECT_EQ(geometry.row_bytes(), 1536);
  EXPECT_EQ(geometry.value_offset_bytes(), 768);
  EXPECT_EQ(geometry.page_bytes(), 98304);
  EXPECT_EQ(geometry.token_bytes(), 46080);
}

TEST(KvGeometry, RowsOfLlama8B) {
  KvGeometry geometry{32, 8, 128, 128, Layout::kGrouped, KvDType::kBF16};
  EXPECT_EQ(geometry.row_bytes(), 4096);
  EXPECT_EQ(geometry.token_bytes(), 131072);
  geometry.dtype = KvDType::kFp8;  // 2 x 1024 codes, 2 x 8 scales
  EXPECT_EQ(geometry.value_offset_bytes(), 1024);
  EXPECT_EQ(geometry.key_scales_offset_bytes(), 2048);
  EXPECT_EQ(geometry.value_scales_offset_bytes(), 2080);
  EXPECT_EQ(geometry.row_bytes(), 2112);
}

TEST(KvGeometry, RowsOfDeepSeekV3) {
  KvGeometry geometry{61, 1, 576, 512, Layout::kLatent, KvDType::kBF16};
  EXPECT_EQ(geometry.row_bytes(), 1152);
  EXPECT_EQ(geometry.value_offset_bytes(), 0);
  geometry.dtype = KvDType::kF32;
  EXPECT_EQ(geometry.row_bytes(), 2304);
  geometry.dtype = KvDType::kFp8;
  EXPECT_EQ(geometry.key_scales_offset_bytes(), 512);
  EXPECT_EQ(geometry.rope_offset_bytes(), 528);
  EXPECT_EQ(geometry.row_bytes(), 656);
  EXPECT_EQ(geometry.page_bytes(), 41984);
}

// Parts of a row must not overlap and must end inside it, whatever the widths.
TEST(KvGeometry, Fp8PartsFollowOneAnother) {
  for (std::int32_t key_dim = 1; key_dim <= 300; key_dim += 7) {
    for (std::int32_t value_dim = 1; value_dim <= 300; value_dim += 13) {
      for (const std::int32_t heads : {1, 3, 8}) {
        const KvGeometry g{1, heads, key_dim, value_dim, Layout::kGrouped, KvDType::kFp8};
        EXPECT_EQ(g.value_offset_bytes(), heads * key_dim);
        EXPECT_GE(g.key_scales_offset_bytes(), heads * (key_dim + value_dim));
        EXPECT_EQ(g.key_scales_offset_bytes() % 4, 0);
        EXPECT_EQ(g.value_scales_offset_bytes(), g.key_scales_offset_bytes() + 4 * heads * fp8_scales(key_dim));
        const std::int64_t end = g.value_scales_offset_bytes() + 4 * heads * fp8_scales(value_dim);
        EXPECT_GE(g.row_bytes(), end);
        EXPECT_LT(g.row_bytes(), end + kFp8RowAlignment);
        EXPECT_EQ(g.row_bytes() % kFp8RowAlignment, 0);
      }
      if (key_dim < value_dim) continue;
      const KvGeometry g{1, 1, key_dim, value_dim, Layout::kLatent, KvDType::kFp8};
      EXPECT_GE(g.key_scales_offset_bytes(), value_dim);
      EXPECT_EQ(g.rope_offset_bytes(), g.key_scales_offset_bytes() + 4 * fp8_scales(value_dim));
      EXPECT_GE(g.row_bytes(), g.rope_offset_bytes() + 2 * (key_dim - value_dim));
      EXPECT_EQ(g.row_bytes() % kFp8RowAlignment, 0);
    }
  }
}

TEST(KvGeometry, Fp8ScalesOfWidths) {
  EXPECT_EQ(fp8_scales(1), 1);
  EXPECT_EQ(fp8_scales(128), 1);
  EXPECT_EQ(fp8_scales(129), 2);
  EXPECT_EQ(fp8_scales(512), 4);
}

TEST(MetadataGeometry, IndexKeys) {
  MetadataGeometry geometry{Kind::kIndexKeys, 1, 128, 0, 1, KvDType::kBF16};
  EXPECT_EQ(geometry.page_bytes(), 64 * 256);
  geometry.dtype = KvDType::kFp8;
  EXPECT_EQ(geometry.page_bytes(), 64 * 132);
  geometry.dtype = KvDType::kF32;
  EXPECT_EQ(geometry.page_bytes(), 64 * 512);
}

TEST(MetadataGeometry, LowRankKeysWhateverTheRowsType) {
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    const MetadataGeometry small{Kind::kLowRankKeys, 3, 64, 16, 1, dtype};
    EXPECT_EQ(small.page_bytes(), 64 * 30);
    EXPECT_EQ(small.low_rank_head_bytes(), 64 * 10);
    const MetadataGeometry large{Kind::kLowRankKeys, 8, 128, 32, 1, dtype};
    EXPECT_EQ(large.page_bytes(), 64 * 144);
  }
}

TEST(MetadataGeometry, BlockBounds) {
  MetadataGeometry geometry{Kind::kBlockBounds, 3, 64, 0, 16, KvDType::kF32};
  EXPECT_EQ(geometry.page_bytes(), 4 * 2 * 3 * 64 * 4);
  geometry.dtype = KvDType::kBF16;
  EXPECT_EQ(geometry.page_bytes(), 4 * 2 * 3 * 64 * 2);
  geometry.dtype = KvDType::kFp8;  // bounds of FP8 rows are bf16
  EXPECT_EQ(geometry.page_bytes(), 4 * 2 * 3 * 64 * 2);
  geometry.block_tokens = 64;
  EXPECT_EQ(geometry.page_bytes(), 2 * 3 * 64 * 2);
}

TEST(MetadataGeometry, NoneTakesNothing) { EXPECT_EQ(MetadataGeometry{}.page_bytes(), 0); }

TEST(KvLayout, UniformNumbersItsLayers) {
  const KvGeometry rows{3, 1, 16, 16, Layout::kGrouped, KvDType::kF32};
  const KvLayout kept = KvLayout::uniform(rows, {Kind::kLowRankKeys, 1, 16, 4, 1, KvDType::kF32});
  EXPECT_EQ(kept.metadata_of_layer, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(kept.metadata_page_bytes(), 3 * 64 * 4);
  const KvLayout none = KvLayout::uniform(rows);
  EXPECT_EQ(none.metadata_of_layer, (std::vector<std::int32_t>{-1, -1, -1}));
  EXPECT_EQ(none.metadata_page_bytes(), 0);
}

TEST(KvGeometry, SlotsOfHighPagesNeedMoreThan32Bits) {
  EXPECT_EQ(slot_of(PageId{2'000'000'000}, 63).value(), 128'000'000'063);
  EXPECT_EQ(host_slot_of(HostPage{2'000'000'000}, 0).value(), 128'000'000'000);
}

TEST(KvGeometry, PagesRoundUp) {
  EXPECT_EQ(pages_for_tokens(0), 0);
  EXPECT_EQ(pages_for_tokens(1), 1);
  EXPECT_EQ(pages_for_tokens(64), 1);
  EXPECT_EQ(pages_for_tokens(65), 2);
}

TEST(CheckedMath, SeesOverflow) {
  EXPECT_EQ(checked_mul(1ULL << 32, 1ULL << 31), 1ULL << 63);
  EXPECT_EQ(checked_mul(1ULL << 32, 1ULL << 32), std::nullopt);
  EXPECT_EQ(checked_add(~0ULL, 0), ~0ULL);
  EXPECT_EQ(checked_add(~0ULL, 1), std::nullopt);
}

}  // namespace
}  // namespace hotset
