// Against the CPU backend's.
#include "kernels/cuda/selection/block_scores.h"

#include "tests/kernels/cuda/selection/score_checks.h"

namespace hotset::kernels::cuda {
namespace {

using SelectionScores = GpuTest;
constexpr HeadCombine kCombines[] = {HeadCombine::kMax, HeadCombine::kMean, HeadCombine::kSoftmax};

struct Shape {
  std::int32_t heads, kv_heads, dim;
  int block;
  KvDType dtype = KvDType::kF32;
  HeadCombine combine = HeadCombine::kMax;
  float scale = 0.1F;

  [[nodiscard]] MetadataGeometry geometry() const { return bounds_geometry(kv_heads, dim, block, dtype); }
  [[nodiscard]] std::int64_t stride() const { return std::int64_t{heads} * dim; }
};
std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.heads << " heads, " << shape.kv_heads << " KV heads, dim " << shape.dim << ", blocks of "
             << shape.block << ", bounds " << static_cast<int>(shape.dtype) << ", combined by "
             << static_cast<int>(shape.combine);
}

// [first, last) of each row: all blocks of short ones, else without some at both ends. A padded row has some beyond
// everything: it may select without scores.
struct Candidates {
  std::vector<std::int64_t> first, last;

  Candidates(const std::vector<DeviceRows::Row>& rows, int block) {
    for (const DeviceRows::Row& row : rows) {
      const std::int64_t blocks = ceil_div(row.length, block);
      first.push_back(row.bed == nullptr ? 1 : blocks > 4 ? 2 : 0);
      last.push_back(row.bed == nullptr ? 10'000 : blocks > 4 ? blocks - 1 : blocks);
    }
  }
};

std::vector<float> cpu_scores(const DeviceRows& rows, const Shape& shape, const std::vector<float>& q) {
  const Candidates candidates(rows.list(), shape.block);
  std::size_t next = 0;
  const auto skip_padding = [&] {
    while (next < rows.list().size() && rows.list()[next].bed == nullptr) ++next;
  };
  skip_padding();
  return rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
    backend.block_scores({scored, q.data(), shape.stride(), &candidates.first[next], &candidates.last[next],
                          shape.heads, shape.combine, shape.scale});
    ++next;
    skip_padding();
  });
}

std::vector<float> device_scores(DeviceRows& rows, const Shape& shape, const DeviceBuffer<float>& q) {
  const Candidates candidates(rows.list(), shape.block);
  const auto first = to_device(candidates.first);
  const auto last = to_device(candidates.last);
  BlockScoresDeviceParams params;
  params.rows = rows.rows();
  params.q = q.data();
  params.q_stride = shape.stride();
  params.first = first.data();
  params.last = last.data();
  params.heads = shape.heads;
  params.combine = shape.combine;
  params.scale = shape.scale;
  const std::size_t bytes = block_workspace_bytes(params.rows.rows, params.rows.max_length, shape.block, shape.heads);
  DeviceBuffer<std::byte> workspace(bytes + 256);
  workspace.fill_bytes(0xff);
  params.workspace = workspace.data();
  launch_block_scores(params, nullptr);
  const std::vector<float> scores = rows.scores();
  const std::vector<std::byte> all = to_host(workspace, bytes + 256);
  for (std::size_t i = bytes; i < all.size(); ++i) EXPECT_EQ(all[i], std::byte{0xff}) << "written behind the workspace";
  return scores;
}

// Near the CPU's in one batch; the same bits twice, in another batch and alone.
void expect_agrees(const Shape& shape, const Sequences& sequences, std::int64_t stride, Random& random) {
  DeviceRows rows(sequences.rows, shape.geometry(), stride, random);
  const std::vector<float> q = random.normals(static_cast<std::int64_t>(sequences.beds.size()) * shape.stride());
  const auto device_q = to_device(q);
  const std::vector<float> got = device_scores(rows, shape, device_q);
  const double allowed = shape.combine == HeadCombine::kSoftmax ? 1e-5 : 1e-4;
  expect_close(
      rows, got, cpu_scores(rows, shape, q), [&](std::int64_t, std::int64_t) { return allowed; }, "block scores");
  ASSERT_FALSE(::testing::Test::HasFailure());
  ASSERT_TRUE(same(got, device_scores(rows, shape, device_q))) << "twice";
  expect_same_bits_in_other_batches(sequences.rows, stride, got, [&](const std::vector<DeviceRows::Row>& list) {
    DeviceRows other(list, shape.geometry(), stride, random);
    return device_scores(other, shape, device_q);
  });
}

TEST_F(SelectionScores, BlockScoresAgreeWithTheCpu) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16})
    for (const int block : {1, 2, 4, 8, 16, 32, 64}) {
      Shape shape{.heads = 6, .kv_heads = 2, .dim = 80, .block = block, .dtype = dtype};
      const Sequences sequences = make_sequences(shape.geometry(), {}, {1, 63, 64, 65, 1500}, random);
      for (const HeadCombine combine : kCombines) {
        shape.combine = combine;
        SCOPED_TRACE(shape);
        ASSERT_NO_FATAL_FAILURE(expect_agrees(shape, sequences, 1500 / block + 3, random));
      }
    }
}

// 128 absorbed queries on latent rows.
TEST_F(SelectionScores, BlockScoresOfManyHeadsOfOneKvHead) {
  Random random;
  for (const int block : {1, 4, 16, 64}) {
    Shape shape{.heads = 128, .kv_heads = 1, .dim = 576, .block = block, .dtype = KvDType::kBF16, .scale = 0.04F};
    const Sequences sequences = make_sequences(shape.geometry(), {}, {1, 65, 400}, random);
    for (const HeadCombine combine : kCombines) {
      shape.combine = combine;
      SCOPED_TRACE(shape);
      ASSERT_NO_FATAL_FAILURE(expect_agrees(shape, sequences, 400 / block + 3, random));
    }
  }
}

// A channel whose keys are all NaN in a block, one NaN key among others, and infinite keys.
TEST_F(SelectionScores, NanBoundsCountAsOnTheCpu) {
  Random random;
  constexpr std::int64_t kLength = 700;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16})
    for (const int block : {1, 8, 64})
      for (const HeadCombine combine : kCombines) {
        const Shape shape{.heads = 6, .kv_heads = 2, .dim = 80, .block = block, .dtype = dtype, .combine = combine};
        SCOPED_TRACE(shape);
        Sequences sequences;
        for (int i = 0; i < 2; ++i) {
          sequences.beds.push_back(std::make_unique<SelectionBed>(shape.geometry()));
          SelectionBed& bed = *sequences.beds.back();
          std::vector<float> keys = random.normals(kLength * bed.width());
          const auto channel = [&](std::int64_t token, std::int64_t c) -> float& {
            return keys[static_cast<std::size_t>(token * bed.width() + c)];
          };
          for (std::int64_t token = 128; token < 192; ++token) channel(token, 3) = kNan;  // KV head 0
          for (std::int64_t token = 256; token < 320; ++token) channel(token, 5) = channel(token, 100) = kNan;
          channel(384, 90) = kNan;
          channel(451, 7) = kInfinity;
          channel(523, 85) = -kInfinity;
          bed.append(*make_cpu_backend(1), keys);
          sequences.rows.push_back({&bed, i, kLength});
        }
        ASSERT_NO_FATAL_FAILURE(expect_agrees(shape, sequences, kLength + 3, random));
      }
}

}  // namespace
}  // namespace hotset::kernels::cuda
