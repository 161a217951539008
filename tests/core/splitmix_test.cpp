#include "core/splitmix.h"

#include <gtest/gtest.h>

namespace hotset {
namespace {

// The first numbers of the authors' program (prng.di.unimi.it/splitmix64.c) from seed 1234567.
TEST(Splitmix, GivesTheNumbersOfTheReference) {
  std::uint64_t state = 1234567;
  for (const std::uint64_t expected : {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL,
                                       4593380528125082431ULL, 16408922859458223821ULL}) {
    EXPECT_EQ(splitmix64(state), expected);
    state += kSplitmixStep;
  }
}

}  // namespace
}  // namespace hotset
