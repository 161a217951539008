#include "core/kv_metadata_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/half.h"

namespace hotset {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::byte> dirty_page(const MetadataGeometry& geometry) {
  return std::vector<std::byte>(static_cast<std::size_t>(geometry.page_bytes()), std::byte{0xff});
}

// Values of every size: spread over many octaves, some channels far above the others.
std::vector<float> wild(std::mt19937& random, std::int64_t count, int least_octave, int most_octave) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> octave(least_octave, most_octave);
  const int size = octave(random);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = std::ldexp(normal(random), size);
  if (random() % 3 == 0) out[random() % out.size()] *= 30.0F;
  return out;
}

TEST(IndexKeys, RoundTripKeepsTheBoundOfTheFormat) {
  std::mt19937 random(1);
  for (const std::int32_t dim : {1, 64, 128, 130, 256})
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
      const MetadataGeometry geometry{MetadataGeometry::Kind::kIndexKeys, 1, dim, 0, 1, dtype};
      std::vector<std::byte> page = dirty_page(geometry);
      std::vector<std::vector<float>> keys;
      for (std::int64_t token = 0; token < kPageTokens; ++token) {
        keys.push_back(wild(random, dim, -20, 20));
        encode_index_key(geometry, keys.back().data(), page.data(), token);
      }
      std::vector<float> decoded(static_cast<std::size_t>(dim));
      for (std::int64_t token = 0; token < kPageTokens; ++token) {
        const std::vector<float>& key = keys[static_cast<std::size_t>(token)];
        decode_index_key(geometry, page.data(), token, decoded.data());
        for (std::size_t c = 0; c < key.size(); ++c) {
          const std::size_t group = c / kFp8ScaleChannels * kFp8ScaleChannels;
          float most = 0;
          for (std::size_t i = group; i < std::min(key.size(), group + kFp8ScaleChannels); ++i)
            most = std::max(most, std::fabs(key[i]));
          const float bound = dtype == KvDType::kF32    ? 0.0F
                              : dtype == KvDType::kBF16 ? std::fabs(key[c]) * 0x1p-8F
                                                        : std::max(std::fabs(key[c]) / 16, most / 458752) * 1.0001F;
          ASSERT_LE(std::fabs(decoded[c] - key[c]), bound) << "dim " << dim << " token " << token << " channel " << c;
        }
      }
    }
}

TEST(LowRankKeys, RoundTripKeepsTheStatedBound) {
  std::mt19937 random(2);
  for (const std::int32_t rank : {2, 4, 10, 16, 64})
    for (int round = 0; round < 20; ++round) {
      const MetadataGeometry geometry{MetadataGeometry::Kind::kLowRankKeys, 3, 64, rank, 1, KvDType::kF32};
      std::vector<std::byte> page = dirty_page(geometry);
      std::vector<std::vector<float>> keys;
      for (std::int64_t token = 0; token < kPageTokens; ++token)
        for (std::int64_t head = 0; head < 3; ++head) {
          keys.push_back(wild(random, rank, -26, 12));
          encode_low_rank_key(geometry, head, keys.back().data(), page.data(), token);
        }
      std::vector<float> decoded(static_cast<std::size_t>(rank));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        decode_low_rank_key(geometry, static_cast<std::int64_t>(i % 3), page.data(), static_cast<std::int64_t>(i / 3),
                            decoded.data());
        float most = 0;
        for (const float x : keys[i]) most = std::max(most, std::fabs(x));
        // The scale's own rounding: 2^-11 of it, or half a subnormal step.
        const double scale = most / 7.0 * (1 + 0x1p-11) + 0x1p-25;
        const double bound = most >= 7 * 0x1p-14F ? scale / 2 : std::max(scale / 2, 7 * 0x1p-25);
        for (std::size_t c = 0; c < decoded.size(); ++c) ASSERT_LE(std::fabs(decoded[c] - keys[i][c]), bound);
      }
    }
}

TEST(LowRankKeys, CodesAndScalesLieAsTheGeometrySays) {
  const MetadataGeometry geometry{MetadataGeometry::Kind::kLowRankKeys, 2, 64, 4, 1, KvDType::kF32};
  std::vector<std::byte> page = dirty_page(geometry);
  const float x[] = {7.0F, -7.0F, 2.5F, -3.5F};  // scale 1; 2.5 and -3.5 lie between two codes
  encode_low_rank_key(geometry, 1, x, page.data(), 3);
  const std::size_t part = static_cast<std::size_t>(geometry.low_rank_head_bytes());
  EXPECT_EQ(std::to_integer<int>(page[part + 3 * 2]), 15 | 1 << 4);
  EXPECT_EQ(std::to_integer<int>(page[part + 3 * 2 + 1]), 10 | 4 << 4);  // half to even: 2 and -4
  EXPECT_EQ(std::to_integer<int>(page[part + 64 * 2 + 3 * 2]), 0x00);
  EXPECT_EQ(std::to_integer<int>(page[part + 64 * 2 + 3 * 2 + 1]), 0x3c);
  // Nothing else was touched.
  EXPECT_EQ(std::count(page.begin(), page.end(), std::byte{0xff}), static_cast<std::ptrdiff_t>(page.size()) - 4);
}

TEST(LowRankKeys, ZerosPoisonAndLargeValues) {
  const MetadataGeometry geometry{MetadataGeometry::Kind::kLowRankKeys, 1, 64, 4, 1, KvDType::kF32};
  std::vector<std::byte> page = dirty_page(geometry);
  const auto through = [&](std::vector<float> x) {
    encode_low_rank_key(geometry, 0, x.data(), page.data(), 0);
    decode_low_rank_key(geometry, 0, page.data(), 0, x.data());
    return x;
  };
  EXPECT_EQ(through({0, 0, -0.0F, 0}), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(through({1e-12F, 0, -1e-12F, 0}), (std::vector<float>{0, 0, 0, 0}));
  for (const float x : through({1, kNan, 2, 3})) EXPECT_TRUE(std::isnan(x));
  EXPECT_EQ(through({kInfinity, 1, -kInfinity, 0}), (std::vector<float>{7 * 65504.0F, 0, -7 * 65504.0F, 0}));
  EXPECT_EQ(through({1e30F, 1, -1e30F, 0}), (std::vector<float>{7 * 65504.0F, 0, -7 * 65504.0F, 0}));
}

TEST(BlockBounds, HoldEveryKeyTightly) {
  std::mt19937 random(3);
  for (const std::int32_t block : {1, 2, 16, 64})
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16}) {
      const MetadataGeometry geometry{MetadataGeometry::Kind::kBlockBounds, 2, 5, 0, block, dtype};
      std::vector<std::byte> page = dirty_page(geometry);
      std::vector<std::vector<float>> keys;
      for (std::int64_t token = 0; token < kPageTokens; ++token) {
        keys.push_back(wild(random, 10, -3, 3));
        widen_bounds(geometry, keys.back().data(), page.data(), token);
        // The newest token counts at once; what the page held before never does.
        const std::int64_t first = token / block * block;
        for (std::int64_t head = 0; head < 2; ++head) {
          float minimum[5];
          float maximum[5];
          decode_bounds(geometry, head, page.data(), token / block, minimum, maximum);
          for (std::int64_t c = 0; c < 5; ++c) {
            float low = kInfinity;
            float high = -kInfinity;
            for (std::int64_t t = first; t <= token; ++t) {
              low = std::min(low, keys[static_cast<std::size_t>(t)][static_cast<std::size_t>(head * 5 + c)]);
              high = std::max(high, keys[static_cast<std::size_t>(t)][static_cast<std::size_t>(head * 5 + c)]);
            }
            const float slack = dtype == KvDType::kF32 ? 0.0F : 0x1p-7F;
            ASSERT_LE(minimum[c], low);
            ASSERT_GE(minimum[c], low - slack * std::fabs(low));
            ASSERT_GE(maximum[c], high);
            ASSERT_LE(maximum[c], high + slack * std::fabs(high));
          }
        }
      }
    }
}

TEST(BlockBounds, Bf16RoundsOutwardAndKeepsWhatItHolds) {
  const MetadataGeometry geometry{MetadataGeometry::Kind::kBlockBounds, 1, 1, 0, 64, KvDType::kBF16};
  const auto bounds = [&](std::vector<float> keys) {
    std::vector<std::byte> page = dirty_page(geometry);
    for (std::size_t token = 0; token < keys.size(); ++token)
      widen_bounds(geometry, &keys[token], page.data(), static_cast<std::int64_t>(token));
    std::pair<float, float> out;
    decode_bounds(geometry, 0, page.data(), 0, &out.first, &out.second);
    return out;
  };
  const float above_one = std::bit_cast<float>(std::bit_cast<std::uint32_t>(1.0F) + 1);
  EXPECT_EQ(bounds({1.0F}), (std::pair{1.0F, 1.0F}));
  EXPECT_EQ(bounds({above_one}), (std::pair{1.0F, 1.0F + 0x1p-7F}));
  EXPECT_EQ(bounds({-above_one}), (std::pair{-1.0F - 0x1p-7F, -1.0F}));
  EXPECT_EQ(bounds({1e-45F}), (std::pair{0.0F, 0x1p-133F}));
  EXPECT_EQ(bounds({-1e-45F}), (std::pair{-0x1p-133F, 0.0F}));
  EXPECT_EQ(bounds({std::numeric_limits<float>::max()}).second, kInfinity);
  EXPECT_EQ(bounds({kInfinity, -kInfinity}), (std::pair{-kInfinity, kInfinity}));
  // NaN is left out, wherever it comes.
  EXPECT_EQ(bounds({kNan, 2.0F}), (std::pair{2.0F, 2.0F}));
  EXPECT_EQ(bounds({2.0F, kNan, 3.0F}), (std::pair{2.0F, 3.0F}));
  EXPECT_TRUE(std::isnan(bounds({kNan}).first));
}

}  // namespace
}  // namespace hotset
