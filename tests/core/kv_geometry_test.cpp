#include "core/kv_geometry.h"

#include <gtest/gtest.h>

#include "core/checked_math.h"

namespace hotset {
namespace {

TEST(KvGeometry, SizesOfTheDefaultModel) {
  const KvGeometry geometry{.layers = 30, .kv_heads = 3, .head_dim = 64, .dtype = KvDType::kF32};
  EXPECT_EQ(geometry.row_bytes(), 1536);
  EXPECT_EQ(geometry.value_offset_bytes(), 768);
  EXPECT_EQ(geometry.page_bytes(), 98304);
  EXPECT_EQ(geometry.token_bytes(), 46080);
}

TEST(KvGeometry, Bf16RowsAreHalfAsLarge) {
  const KvGeometry geometry{.layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = KvDType::kBF16};
  EXPECT_EQ(geometry.row_bytes(), 4096);
  EXPECT_EQ(geometry.token_bytes(), 131072);
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
