#include "sparse/selection_code.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace hotset::sparse {
namespace {

using Bytes = std::vector<std::uint8_t>;

TEST(SelectionCode, NumbersAreLeb128) {
  const auto bytes = [](std::uint64_t number) {
    Bytes out;
    put_number(number, out);
    return out;
  };
  EXPECT_EQ(bytes(0), (Bytes{0}));
  EXPECT_EQ(bytes(127), (Bytes{0x7F}));
  EXPECT_EQ(bytes(128), (Bytes{0x80, 0x01}));
  EXPECT_EQ(bytes(300), (Bytes{0xAC, 0x02}));
  for (const std::uint64_t number :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, std::uint64_t{16'384}, std::uint64_t{1} << 35,
        std::numeric_limits<std::uint64_t>::max() - 1, std::numeric_limits<std::uint64_t>::max()}) {
    const Bytes out = bytes(number);
    NumberReader reader(out);
    EXPECT_EQ(reader.number(), number);
    EXPECT_EQ(reader.left(), 0U);
  }
}

TEST(SelectionCode, NumbersThatEndEarlyOrDontFitAreNone) {
  for (const Bytes& bytes : {Bytes{}, Bytes{0x80}, Bytes(9, 0xFF),
                             Bytes{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02}, Bytes(11, 0x80)}) {
    NumberReader reader(bytes);
    EXPECT_EQ(reader.number(), std::nullopt) << bytes.size();
  }
}

TEST(SelectionCode, BlocksAreDistancesFromTheOneBefore) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  Bytes bytes;
  ASSERT_TRUE(put_blocks(std::vector<std::int32_t>{0, 1, 9, 10, 500}, bytes));
  EXPECT_EQ(bytes, (Bytes{0, 0, 7, 0, 0xE9, 0x03}));
  for (const std::vector<std::int32_t>& blocks :
       {std::vector<std::int32_t>{}, {0}, {kMost}, {0, kMost}, {0, 1, 9, 10, 500}, {kMost - 1, kMost}}) {
    Bytes out;
    ASSERT_TRUE(put_blocks(blocks, out));
    std::vector<std::int32_t> read{7, 7};
    NumberReader reader(out);
    ASSERT_TRUE(reader.blocks(blocks.size(), kMost, read));
    EXPECT_EQ(read, blocks);
    EXPECT_EQ(reader.left(), 0U);
  }
}

TEST(SelectionCode, BlocksThatDontAscendAreRefused) {
  for (const std::vector<std::int32_t>& blocks :
       {std::vector<std::int32_t>{-1}, {0, 0}, {5, 4}, {0, -1}, {std::numeric_limits<std::int32_t>::max(), 0}}) {
    Bytes out;
    EXPECT_FALSE(put_blocks(blocks, out));
  }
}

TEST(SelectionCode, BlocksBeyondTheLastOrTheBytesAreRefused) {
  Bytes bytes;
  ASSERT_TRUE(put_blocks(std::vector<std::int32_t>{3, 8}, bytes));
  std::vector<std::int32_t> read;
  EXPECT_TRUE(NumberReader(bytes).blocks(2, 8, read));
  EXPECT_FALSE(NumberReader(bytes).blocks(2, 7, read));
  EXPECT_FALSE(NumberReader(bytes).blocks(3, 8, read));
  EXPECT_FALSE(NumberReader(bytes).blocks(std::numeric_limits<std::uint64_t>::max(), 8, read));
  // A distance that would overflow a position.
  bytes = {0x01};
  put_number(std::numeric_limits<std::uint64_t>::max(), bytes);
  EXPECT_FALSE(NumberReader(bytes).blocks(2, std::numeric_limits<std::int32_t>::max(), read));
}

}  // namespace
}  // namespace hotset::sparse
