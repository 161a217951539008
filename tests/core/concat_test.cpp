#include "core/concat.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace hotset {
namespace {

TEST(Concat, JoinsTextNumbersAndFlags) {
  EXPECT_EQ(concat("--threads ", 3, " of ", std::string("64"), ',', ' ', true), "--threads 3 of 64, true");
}

TEST(Concat, PrintsNumbersShortestAndWhole) {
  EXPECT_EQ(concat(0.1, " ", -1.5F, " ", std::int64_t{-9223372036854775807LL - 1}, " ",
                   std::uint64_t{18446744073709551615ULL}),
            "0.1 -1.5 -9223372036854775808 18446744073709551615");
}

}  // namespace
}  // namespace hotset
