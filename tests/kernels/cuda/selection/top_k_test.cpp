#include "kernels/cuda/selection/top_k.h"

#include <limits>

#include "kernels/cpu/top_k.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/selection/device_rows.h"

namespace hotset::kernels::cuda {
namespace {

using TopKDevice = GpuTest;
constexpr std::int32_t kPoison = -77;

struct Batch {
  std::int64_t stride = 0;
  std::vector<float> scores;  // [rows, stride]
  std::vector<std::int64_t> lengths, first, last;
  std::vector<std::int32_t> k;
  std::int64_t offset = 0;  // floats before the scores: breaks their alignment

  [[nodiscard]] std::size_t rows() const { return lengths.size(); }
};

// Compares with the CPU's code; prints the first difference.
void expect_exact(const Batch& batch, bool forced, int blocks, int threads, const char* what) {
  const std::int64_t out_stride = [&] {
    std::int64_t most = 1;
    for (std::size_t row = 0; row < batch.rows(); ++row) {
      const TopKRow request{nullptr, batch.lengths[row], forced ? batch.first[row] : 0,
                            forced ? batch.last[row] : batch.lengths[row], batch.k[row]};
      most = std::max(most, top_k_count(request));
    }
    return most + 3;
  }();
  std::vector<float> shifted(static_cast<std::size_t>(batch.offset), 1e30F);
  shifted.insert(shifted.end(), batch.scores.begin(), batch.scores.end());
  const DeviceBuffer<float> scores = to_device(shifted);
  const auto lengths = to_device(batch.lengths);
  const auto first = to_device(batch.first);
  const auto last = to_device(batch.last);
  const auto k = to_device(batch.k);
  const std::size_t out_size = batch.rows() * static_cast<std::size_t>(out_stride);
  DeviceBuffer<std::int32_t> out = to_device(std::vector<std::int32_t>(out_size + 64, kPoison));
  DeviceBuffer<std::int32_t> counts = to_device(std::vector<std::int32_t>(batch.rows() + 1, kPoison));
  TopKDeviceParams params;
  params.scores = scores.data() + batch.offset;
  params.stride = batch.stride;
  params.lengths = lengths.data();
  params.first = forced ? first.data() : nullptr;
  params.last = forced ? last.data() : nullptr;
  params.k = k.data();
  params.rows = static_cast<std::int64_t>(batch.rows());
  params.max_length = batch.lengths.empty() ? 0 : *std::max_element(batch.lengths.begin(), batch.lengths.end());
  params.out = out.data();
  params.out_stride = out_stride;
  params.counts = counts.data();
  params.blocks_per_row = blocks;
  params.threads = threads;
  launch_top_k(params, nullptr);
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  const std::vector<std::int32_t> got = to_host(out, out_size + 64);
  const std::vector<std::int32_t> got_counts = to_host(counts, batch.rows() + 1);
  ASSERT_EQ(got_counts.back(), kPoison) << what;
  for (std::size_t i = out_size; i < got.size(); ++i) ASSERT_EQ(got[i], kPoison) << what << ": written past the end";
  std::vector<std::uint32_t> scratch(static_cast<std::size_t>(batch.stride) + 1);
  std::vector<std::int32_t> expected(static_cast<std::size_t>(out_stride));
  for (std::size_t row = 0; row < batch.rows(); ++row) {
    std::fill(expected.begin(), expected.end(), -1);
    const float* const row_scores = batch.scores.data() + row * static_cast<std::size_t>(batch.stride);
    const TopKRow request{row_scores, batch.lengths[row], forced ? batch.first[row] : 0,
                          forced ? batch.last[row] : batch.lengths[row], batch.k[row]};
    const std::int32_t count = top_k_row(request, scratch.data(), expected.data());
    ASSERT_EQ(got_counts[row], count) << what << ", row " << row << ", blocks " << blocks << " of " << threads;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(got[row * static_cast<std::size_t>(out_stride) + i], expected[i])
          << what << ": row " << row << " of length " << batch.lengths[row] << ", k " << batch.k[row]
          << ", forced below " << (forced ? batch.first[row] : 0) << " and from "
          << (forced ? batch.last[row] : batch.lengths[row]) << ", blocks " << blocks << " of " << threads << ", entry "
          << i << " of " << count << ", its score " << (expected[i] >= 0 ? row_scores[expected[i]] : 0.0F);
    }
  }
}

enum class Scores { kNormal, kFewValues, kSpecial, kNarrow, kEqual };

float draw(Scores kind, Random& random) {
  constexpr float kSpecials[] = {0.0F,
                                 -0.0F,
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN(),
                                 -std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::denorm_min(),
                                 -std::numeric_limits<float>::denorm_min(),
                                 std::numeric_limits<float>::max(),
                                 1.0F};
  switch (kind) {
    case Scores::kNormal: return random.normal();
    case Scores::kFewValues: return static_cast<float>(random.integer(-3, 3));
    case Scores::kSpecial: return kSpecials[random.integer(0, std::size(kSpecials) - 1)];
    case Scores::kNarrow: return 1.0F + static_cast<float>(random.integer(0, 5000)) * 0x1p-23F;
    case Scores::kEqual: return -2.5F;
  }
  return 0.0F;
}

Batch make_batch(std::int64_t rows, std::int64_t longest, std::int64_t most_k, Scores kind, Random& random) {
  Batch batch;
  batch.stride = longest + 1;
  batch.scores.resize(static_cast<std::size_t>(rows * batch.stride));
  for (float& score : batch.scores) score = draw(kind, random);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t length = row == 0 ? longest : row == 1 ? 0 : random.integer(0, longest);
    const std::int64_t first = random.integer(0, std::min<std::int64_t>(length, 70));
    batch.lengths.push_back(length);
    batch.first.push_back(first);
    batch.last.push_back(std::max(first, length - random.integer(0, 70)));
    batch.k.push_back(static_cast<std::int32_t>(row % 7 == 3 ? length : random.integer(0, most_k)));
    if (batch.k.back() > most_k) batch.k.back() = static_cast<std::int32_t>(most_k);
  }
  return batch;
}

constexpr Scores kKinds[] = {Scores::kNormal, Scores::kFewValues, Scores::kSpecial, Scores::kNarrow, Scores::kEqual};

TEST_F(TopKDevice, ShortRowsAtEveryAlignmentAndDivision) {
  Random random;
  for (const std::int64_t longest : {1, 3, 4, 5, 127, 128, 129, 4095, 4097})
    for (const Scores kind : kKinds)
      for (const int blocks : {0, 1, 2, 4, 8, 16}) {
        Batch batch = make_batch(9, longest, longest + 2, kind, random);
        batch.offset = random.integer(0, 3);
        for (const int threads : {0, 256, 512, 1024}) {
          ASSERT_NO_FATAL_FAILURE(expect_exact(batch, false, blocks, threads, "short rows"));
          ASSERT_NO_FATAL_FAILURE(expect_exact(batch, true, blocks, threads, "short rows, forced ends"));
        }
      }
}

TEST_F(TopKDevice, RaggedBatches) {
  Random random;
  for (const std::int64_t rows : {1, 7, 16, 33, 64})
    for (const Scores kind : {Scores::kNormal, Scores::kSpecial, Scores::kNarrow}) {
      const Batch batch = make_batch(rows, rows > 16 ? 60'000 : 200'000, 4096, kind, random);
      ASSERT_NO_FATAL_FAILURE(expect_exact(batch, true, 0, 0, "ragged"));
    }
}

// One block cannot keep the keys in shared memory: they are read again.
TEST_F(TopKDevice, LongRowsOfFewBlocks) {
  Random random;
  const Batch batch = make_batch(3, 200'001, 4096, Scores::kNormal, random);
  for (const int blocks : {1, 2, 4, 8, 16})
    for (const int threads : {0, 256, 1024}) {
      ASSERT_NO_FATAL_FAILURE(expect_exact(batch, true, blocks, threads, "long"));
    }
}

TEST_F(TopKDevice, AMillionScores) {
  Random random;
  for (const Scores kind : {Scores::kNormal, Scores::kEqual}) {
    Batch batch = make_batch(1, 1'048'576, 4096, kind, random);
    batch.k[0] = 4096;
    ASSERT_NO_FATAL_FAILURE(expect_exact(batch, false, 0, 0, "a million"));
  }
}

// As many scores of one leading digit as blocks push to one another, and one more.
TEST_F(TopKDevice, CrowdsAtTheThreshold) {
  Random random;
  for (const std::int64_t crowd : {1, 2, 2047, 2048, 2049, 6000}) {
    Batch batch = make_batch(4, 20'000, 4096, Scores::kNormal, random);
    batch.lengths = {20'000, 20'000, 20'000, 19'999};
    for (std::size_t row = 0; row < batch.rows(); ++row) {
      float* const scores = batch.scores.data() + row * static_cast<std::size_t>(batch.stride);
      for (std::int64_t i = 0; i < 20'000; ++i) {
        const bool in = (i * 7919) % 20'000 < crowd;  // 7919 is a prime
        const float small = static_cast<float>(random.integer(0, row == 0 ? 0 : row == 1 ? 9 : 500'000)) * 0x1p-23F;
        scores[i] = in ? 1.0F + small : (i % 16 == 3 ? 4.0F : -1.0F) + 0x1p-10F * random.normal();
      }
    }
    const std::int64_t before =
        std::count_if(batch.scores.begin(), batch.scores.begin() + 20'000, [](float score) { return score > 3.0F; });
    for (const std::int64_t wanted : {std::int64_t{1}, crowd / 2, crowd - 1, crowd, crowd + 1}) {
      for (std::int32_t& k : batch.k) k = static_cast<std::int32_t>(before + wanted);
      for (const int blocks : {0, 1, 8, 16}) {
        const int threads = blocks == 8 ? 256 : blocks == 16 ? 1024 : 0;
        ASSERT_NO_FATAL_FAILURE(expect_exact(batch, false, blocks, threads, "crowds"));
      }
    }
  }
}

TEST_F(TopKDevice, KAtItsEnds) {
  Random random;
  Batch batch = make_batch(6, 1000, 10, Scores::kNormal, random);
  batch.lengths = {1000, 1000, 1000, 1000, 1000, 0};
  batch.k = {0, 1, 999, 1000, 1001, 5};
  batch.first = {0, 500, 0, 10, 1000, 3};
  batch.last = {1000, 500, 1, 990, 1000, 9};
  for (const int blocks : {1, 4}) {
    ASSERT_NO_FATAL_FAILURE(expect_exact(batch, false, blocks, 0, "ends of k"));
    ASSERT_NO_FATAL_FAILURE(expect_exact(batch, true, blocks, 0, "ends of k, forced ends"));
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
