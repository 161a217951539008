#include "core/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace hotset {
namespace {

Result<std::unique_ptr<int>> positive(int value) {
  if (value <= 0) return invalid_argument("the value must be above 0", "value");
  return std::make_unique<int>(value);
}

TEST(Result, HoldsAMoveOnlyValue) {
  auto result = positive(3);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(Result, HoldsAnErrorWithItsParameter) {
  const auto result = positive(0);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().param, "value");
  EXPECT_EQ(result.error().message, "the value must be above 0");
}

TEST(ResultDeathTest, ReadingTheWrongSideIsABug) {
  EXPECT_DEATH((void)positive(0).value(), "value\\(\\) of a failed Result");
  EXPECT_DEATH((void)positive(1).error(), "error\\(\\) of a good Result");
}

}  // namespace
}  // namespace hotset
