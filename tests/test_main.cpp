// main() of every GoogleTest program. A program in which tests had to skip for want of a GPU (of its kind) and none
// failed ends with kSkipped, which CTest counts as skipped (cmake/HotsetOptions.cmake). A failure beside skipped tests
// stays a failure.
#include <gtest/gtest.h>

#include <string_view>

namespace {

constexpr int kSkipped = 77;
// What such tests say when they skip.
constexpr std::string_view kNoGpu = "no GPU here", kNoHopper = "no Hopper GPU here";

bool wants_gpu(const testing::TestResult& result) {
  for (int part = 0; part < result.total_part_count(); ++part) {
    const testing::TestPartResult& said = result.GetTestPartResult(part);
    const std::string_view why = said.skipped() ? said.message() : "";
    if (why.find(kNoGpu) != why.npos || why.find(kNoHopper) != why.npos) return true;
  }
  return false;
}

bool any_wants_gpu(const testing::UnitTest& all) {
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    if (wants_gpu(suite.ad_hoc_test_result())) return true;
    for (int t = 0; t < suite.total_test_count(); ++t)
      if (wants_gpu(*suite.GetTestInfo(t)->result())) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  return status == 0 && any_wants_gpu(*testing::UnitTest::GetInstance()) ? kSkipped : status;
}
