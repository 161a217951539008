// What tests/test_main.cpp ends with: run by filter, see tests/CMakeLists.txt.
#include <gtest/gtest.h>

TEST(Cases, Passes) {}
TEST(Cases, SkipsForWantOfAGpu) { GTEST_SKIP() << "no GPU here"; }
TEST(Cases, SkipsForWantOfAHopper) { GTEST_SKIP() << "no Hopper GPU here"; }
TEST(Cases, SkipsForAnotherReason) { GTEST_SKIP() << "no model here"; }
TEST(Cases, Fails) { FAIL(); }
