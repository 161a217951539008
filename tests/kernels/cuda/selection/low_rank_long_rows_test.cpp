// Low-rank scores as decode steps launch them: long rows, many of them, right behind the launch that writes their
// newest keys. The same bits as with the device idle between the launches, and near those of the plain form.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cuda/new_rows.h"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/selection/device_rows.h"

namespace hotset::kernels::cuda {
namespace {

using LowRankLongRows = GpuTest;
constexpr std::int32_t kDim = 128;
constexpr int kSteps = 8;               // each with new rows at the same positions
constexpr std::int64_t kShared = 8000;  // pages that the rows' older tokens lie in: more than the L2 holds

struct Shape {
  std::int32_t heads, kv_heads, rank;

  [[nodiscard]] MetadataGeometry geometry() const { return low_rank_geometry(kv_heads, kDim, rank); }
  [[nodiscard]] std::int64_t product_width() const { return std::int64_t{heads + 2 * kv_heads} * kDim; }
};

// Random codes, scales from 1/8 to 1/4.
std::vector<std::byte> random_pages(const MetadataGeometry& geometry, std::int64_t pages, Random& random) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(pages * geometry.page_bytes()) / sizeof(std::uint64_t));
  for (std::uint64_t& word : words) word = random.engine()();
  std::vector<std::byte> bytes(words.size() * sizeof(std::uint64_t));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  const std::int64_t head_bytes = geometry.low_rank_head_bytes();
  const std::int64_t code_bytes = kPageTokens * geometry.rank / 2;
  for (std::int64_t part = 0; part < pages * geometry.kv_heads; ++part) {
    for (std::int64_t token = 0; token < kPageTokens; ++token) {
      std::byte& high = bytes[static_cast<std::size_t>(part * head_bytes + code_bytes + 2 * token + 1)];
      high = (high & std::byte{3}) | std::byte{0x30};
    }
  }
  return bytes;
}

// Rows of `lengths` tokens; every `everything`-th takes all its tokens and is not scored (0: none).
class Rows {
 public:
  Rows(const Shape& shape, std::vector<std::int64_t> lengths, int everything, Random& random)
      : shape_(shape), lengths_(std::move(lengths)) {
    for (const std::int64_t length : lengths_) longest_ = std::max(longest_, length);
    const auto count = static_cast<std::int64_t>(lengths_.size());
    page_stride_ = pages_for_tokens(longest_);
    std::vector<std::int32_t> pages(static_cast<std::size_t>(count * page_stride_));
    std::vector<std::int32_t> row_pages(pages.size());
    std::vector<std::int64_t> positions;
    std::vector<std::int32_t> k;
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t length = lengths_[static_cast<std::size_t>(row)];
      for (std::int64_t page = 0; page < page_stride_; ++page) {
        const auto at = static_cast<std::size_t>(row * page_stride_ + page);
        const bool newest = page == (length - 1) / kPageTokens;
        pages[at] = static_cast<std::int32_t>(newest ? kShared + row : random.integer(0, kShared - 1));
        row_pages[at] = static_cast<std::int32_t>(row);
      }
      positions.push_back(length - 1);
      k.push_back(everything > 0 && row % everything == 1 ? static_cast<std::int32_t>(length) : 0);
      scored_.push_back(k.back() < length);
    }
    pool_ = to_device(random_pages(shape.geometry(), kShared + count, random));
    pages_ = to_device(pages);
    row_pages_ = to_device(row_pages);
    positions_ = to_device(positions);
    lengths_on_device_ = to_device(lengths_);
    k_ = to_device(k);
    std::vector<HotRow> tables(lengths_.size());
    for (std::size_t row = 0; row < tables.size(); ++row) {
      tables[row].device_pages = row_pages_.data() + static_cast<std::int64_t>(row) * page_stride_;
    }
    tables_ = to_device(tables);
    row_pool_ = DeviceBuffer<std::byte>(static_cast<std::size_t>(count * kPageTokens * row_geometry().row_bytes()));
    std::vector<float> basis = random.normals(std::int64_t{shape.kv_heads} * kDim * shape.rank);
    for (float& x : basis) x *= 0.09F;
    basis_ = to_device(basis);
    for (int step = 0; step < kSteps; ++step) products_.push_back(to_device(random.normals(count * width())));
    product_ = DeviceBuffer<float>(static_cast<std::size_t>(count * width()));
    std::vector<float> frequencies;
    for (int i = 0; i < kDim / 2; ++i) frequencies.push_back(std::pow(1e4F, -2.0F * static_cast<float>(i) / kDim));
    frequencies_ = to_device(frequencies);
    for (int step = 0; step < kSteps; ++step) scores_.emplace_back(static_cast<std::size_t>(count * longest_));
    workspace_ = DeviceBuffer<std::byte>(low_rank_workspace_bytes(count, longest_, shape.heads, shape.rank));
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }

  void poison() {
    for (auto& scores : scores_) scores.fill_bytes(0xff);
    workspace_.fill_bytes(0xff);
  }
  // `idle`: nothing else runs while a launch does.
  void launch_step(int step, Stream stream, bool idle, bool plain) {
    const auto wait = [&] {
      if (idle) HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream));
    };
    const auto at = static_cast<std::size_t>(step);
    HOTSET_CUDA_CHECK(
        cudaMemcpyAsync(product_.data(), products_[at].data(), product_.bytes(), cudaMemcpyDeviceToDevice, stream));
    wait();
    launch_new_rows(stream);
    wait();
    launch_scores(stream, scores_[at].data(), plain);
    wait();
  }
  [[nodiscard]] std::vector<std::vector<float>> scores() const {
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<std::vector<float>> out;
    for (const auto& scores : scores_) out.push_back(to_host(scores, scores.size()));
    return out;
  }
  [[nodiscard]] const std::vector<std::int64_t>& lengths() const { return lengths_; }
  [[nodiscard]] std::int64_t stride() const { return longest_; }
  [[nodiscard]] bool scored(std::size_t row) const { return scored_[row]; }

 private:
  [[nodiscard]] std::int64_t width() const { return shape_.product_width(); }
  [[nodiscard]] KvGeometry row_geometry() const {
    return {1, shape_.kv_heads, kDim, kDim, KvGeometry::Layout::kGrouped, KvDType::kBF16};
  }
  void launch_new_rows(Stream stream) {
    GroupedRowsParams params;
    params.geometry = row_geometry();
    params.targets = {tables_.data(), 1, positions_.data(), row_pool_.data()};
    params.rotation = {frequencies_.data(), kDim, 1.0F};
    params.q = params.q_out = product_.data();
    params.k = params.k_out = product_.data() + std::int64_t{shape_.heads} * kDim;
    params.v = params.k + std::int64_t{shape_.kv_heads} * kDim;
    params.q_stride = params.k_stride = params.v_stride = params.q_out_stride = params.k_out_stride = width();
    params.metadata = {
        shape_.geometry(), {pool_.data(), pages_.data(), page_stride_, positions_.data()}, basis_.data()};
    params.rows = static_cast<std::int64_t>(lengths_.size());
    params.heads = shape_.heads;
    params.follows_product = true;
    launch_grouped_rows(params, stream);
  }
  void launch_scores(Stream stream, float* scores, bool plain) {
    LowRankScoresDeviceParams params;
    params.rows.geometry = shape_.geometry();
    params.rows.pool = pool_.data();
    params.rows.pages = pages_.data();
    params.rows.page_stride = page_stride_;
    params.rows.lengths = lengths_on_device_.data();
    params.rows.k = k_.data();
    params.rows.rows = static_cast<std::int64_t>(lengths_.size());
    params.rows.max_length = longest_;
    params.rows.scores = scores;
    params.rows.stride = longest_;
    params.q = product_.data();
    params.q_stride = width();
    params.basis = basis_.data();
    params.heads = shape_.heads;
    params.scale = 0.25F;
    params.workspace = workspace_.data();
    params.plain = plain;
    launch_low_rank_scores(params, stream);
  }

  Shape shape_;
  std::vector<std::int64_t> lengths_;
  std::vector<bool> scored_;
  std::int64_t longest_ = 0;
  std::int64_t page_stride_ = 0;
  DeviceBuffer<std::byte> pool_, row_pool_, workspace_;
  DeviceBuffer<std::int32_t> pages_, row_pages_, k_;
  DeviceBuffer<std::int64_t> positions_, lengths_on_device_;
  DeviceBuffer<HotRow> tables_;
  DeviceBuffer<float> basis_, product_, frequencies_;
  std::vector<DeviceBuffer<float>> products_, scores_;
};

void expect_same(const Rows& rows, const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& expected, const char* what) {
  for (std::size_t step = 0; step < expected.size(); ++step) {
    if (std::memcmp(got[step].data(), expected[step].data(), expected[step].size() * sizeof(float)) == 0) continue;
    for (std::size_t i = 0; i < expected[step].size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[step][i]), std::bit_cast<std::uint32_t>(expected[step][i]))
          << what << ", step " << step << ", row " << at / rows.stride() << " of "
          << rows.lengths()[static_cast<std::size_t>(at / rows.stride())] << " tokens, token " << at % rows.stride()
          << ": " << got[step][i] << ", alone on the device " << expected[step][i];
    }
  }
}

void expect_near_plain(const Rows& rows, const std::vector<float>& got, const std::vector<float>& plain) {
  for (std::size_t row = 0; row < rows.lengths().size(); ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(row) * rows.stride();
    const std::int64_t length = rows.scored(row) ? rows.lengths()[row] : 0;
    float largest = 0.0F;
    for (std::int64_t token = 0; token < length; ++token) {
      largest = std::max(largest, plain[static_cast<std::size_t>(begin + token)]);
    }
    for (std::int64_t token = 0; token < rows.stride(); ++token) {
      const float ours = got[static_cast<std::size_t>(begin + token)];
      const float theirs = plain[static_cast<std::size_t>(begin + token)];
      const bool right = token < length ? std::fabs(ours - theirs) <= 0x1p-10F * largest : std::isnan(ours);
      ASSERT_TRUE(right) << "row " << row << " of " << length << " tokens, token " << token << ": " << ours
                         << ", the plain form says " << theirs << ", the row's largest is " << largest;
    }
  }
}

void expect_scores(const Shape& shape, const std::vector<std::int64_t>& lengths, int everything, Random& random) {
  SCOPED_TRACE(::testing::Message() << shape.heads << " heads, " << shape.kv_heads << " KV heads, rank " << shape.rank
                                    << ", " << lengths.size() << " rows, the first of " << lengths[0] << " tokens");
  Rows rows(shape, lengths, everything, random);
  const OwnedStream stream;
  rows.poison();
  for (int step = 0; step < kSteps; ++step) rows.launch_step(step, stream.get(), true, true);
  const auto plain = rows.scores();
  rows.poison();
  for (int step = 0; step < kSteps; ++step) rows.launch_step(step, stream.get(), true, false);
  const auto expected = rows.scores();
  for (const std::size_t step : {0, kSteps - 1}) {
    ASSERT_NO_FATAL_FAILURE(expect_near_plain(rows, expected[step], plain[step]));
  }
  // Older keys would show.
  const auto newest = static_cast<std::size_t>(lengths[0] - 1);
  ASSERT_NE(expected[0][newest], expected[1][newest]);

  rows.poison();
  for (int step = 0; step < kSteps; ++step) rows.launch_step(step, stream.get(), false, false);
  ASSERT_NO_FATAL_FAILURE(expect_same(rows, rows.scores(), expected, "launched one after the other"));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replayed = nullptr;
  HOTSET_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int step = 0; step < kSteps; ++step) rows.launch_step(step, stream.get(), false, false);
  HOTSET_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  HOTSET_CUDA_CHECK(cudaGraphInstantiate(&replayed, graph, 0));
  rows.poison();
  for (int replay = 0; replay < 3; ++replay) HOTSET_CUDA_CHECK(cudaGraphLaunch(replayed, stream.get()));
  ASSERT_NO_FATAL_FAILURE(expect_same(rows, rows.scores(), expected, "replayed"));
  HOTSET_CUDA_CHECK(cudaGraphExecDestroy(replayed));
  HOTSET_CUDA_CHECK(cudaGraphDestroy(graph));
}

// The first is `most`.
std::vector<std::int64_t> random_lengths(std::int64_t count, std::int64_t least, std::int64_t most, Random& random) {
  std::vector<std::int64_t> out{most};
  for (std::int64_t i = 1; i < count; ++i) out.push_back(random.integer(least, most));
  return out;
}

TEST_F(LowRankLongRows, FullBatches) {
  Random random;
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 8, 32}, std::vector<std::int64_t>(64, 131'072), 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 8, 32}, random_lengths(16, 100'000, 140'000, random), 5, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 8, 32}, random_lengths(16, 30'000, 131'072, random), 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 4, 32}, std::vector<std::int64_t>(16, 131'072), 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({40, 8, 16}, random_lengths(8, 100'000, 140'000, random), 3, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({48, 8, 64}, random_lengths(4, 30'000, 131'072, random), 0, random));
}

// A row of more units than the GPU has multiprocessors, which blocks go through twice.
TEST_F(LowRankLongRows, LongerThanTheGrid) {
  Random random;
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 8, 32}, {200'001, 135'169, 64, 270'400, 140'000}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({8, 4, 16}, {280'003, 1, 300'000}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({8, 2, 32}, {560'000, 63, 541'000}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({14, 2, 32}, {300'000, 65}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 4, 32}, {150'000, 1, 200'001}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 8, 32}, {150'000, 1, 200'001}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 4, 16}, {140'001, 136'000, 65}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({10, 2, 16}, {280'003, 1, 300'000}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({24, 4, 64}, {150'000, 1}, 0, random));
}

// So few pages that a block has less than it holds.
TEST_F(LowRankLongRows, FewPages) {
  Random random;
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 8, 32}, {32'768}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 8, 32}, {65'000, 1, 640}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({16, 4, 16}, {20'001, 9'000, 30'000}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({8, 2, 32}, random_lengths(9, 1, 5'000, random), 4, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({28, 4, 16}, {30'001, 65}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 2, 32}, {20'000, 1, 4'095}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 8, 32}, {32'768}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({16, 16, 16}, {9'000, 640}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 8, 16}, {3'000, 64}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({40, 8, 32}, {20'001, 1, 9'000, 640}, 3, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({24, 4, 32}, random_lengths(9, 1, 5'000, random), 4, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 4, 32}, {30'001, 65}, 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({16, 2, 64}, {20'000, 63}, 0, random));
}

// Several rows among the blocks of a grid at a time.
TEST_F(LowRankLongRows, RowsShareAWave) {
  Random random;
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 8, 32}, random_lengths(40, 500, 20'000, random), 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({24, 6, 16}, random_lengths(64, 1, 70'000, random), 7, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({4, 2, 32}, random_lengths(33, 1, 9'000, random), 3, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({32, 4, 32}, random_lengths(24, 1, 40'000, random), 0, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({56, 8, 32}, random_lengths(40, 1, 40'000, random), 7, random));
  ASSERT_NO_FATAL_FAILURE(expect_scores({64, 4, 16}, random_lengths(24, 1, 20'000, random), 5, random));
}

}  // namespace
}  // namespace hotset::kernels::cuda
