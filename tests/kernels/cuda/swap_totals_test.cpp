#include "kernels/cuda/swap_totals.h"

#include <random>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/seed.h"

namespace hotset::kernels::cuda {
namespace {

using SwapTotalsDevice = GpuTest;

// Counts of several layers, each added once; what lies behind the last row stays.
TEST_F(SwapTotalsDevice, SumsOfEveryRow) {
  std::mt19937_64 random(test_seed());
  for (const std::int32_t rows : {0, 1, 127, 128, 129, 512}) {
    const auto count = static_cast<std::size_t>(rows);
    std::vector<SwapTotals> expected(count + 1, SwapTotals{.hits = 7, .misses = -3});
    DeviceBuffer<SwapTotals> totals(expected.size());
    totals.upload(expected.data(), expected.size());
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<SparseDiffCounts> counts(count + 1, SparseDiffCounts{1, 1, 1, 1, 1});
      for (std::size_t row = 0; row < count; ++row) {
        for (std::int32_t* x : {&counts[row].hits, &counts[row].ring_hits, &counts[row].misses,
                                &counts[row].ring_misses, &counts[row].unplaced}) {
          *x = static_cast<std::int32_t>(random() % 4097);
        }
        expected[row].hits += counts[row].hits;
        expected[row].ring_hits += counts[row].ring_hits;
        expected[row].misses += counts[row].misses;
        expected[row].ring_misses += counts[row].ring_misses;
        expected[row].unplaced += counts[row].unplaced;
      }
      DeviceBuffer<SparseDiffCounts> given(counts.size());
      given.upload(counts.data(), counts.size());
      launch_add_swap_counts(given.data(), totals.data(), rows, nullptr);
      HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    }
    std::vector<SwapTotals> got(expected.size());
    totals.download(got.data(), got.size());
    for (std::size_t row = 0; row < got.size(); ++row) {
      const SwapTotals &a = got[row], &b = expected[row];
      ASSERT_TRUE(a.hits == b.hits && a.ring_hits == b.ring_hits && a.misses == b.misses &&
                  a.ring_misses == b.ring_misses && a.unplaced == b.unplaced)
          << rows << " rows, row " << row << ": hits " << a.hits << ", expected " << b.hits << "; ring hits "
          << a.ring_hits << ", expected " << b.ring_hits << "; misses " << a.misses << ", expected " << b.misses
          << "; ring misses " << a.ring_misses << ", expected " << b.ring_misses << "; unplaced " << a.unplaced
          << ", expected " << b.unplaced;
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
