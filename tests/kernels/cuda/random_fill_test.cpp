// Matrices and experts filled on the device against those that the host makes and packs, bit for bit.
#include "kernels/cuda/random_fill.h"

#include <vector>

#include "core/half.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/weight_matrix.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

using RandomFill = GpuTestWithParam<ElementType>;

std::vector<std::uint8_t> bytes_at(const void* data, std::int64_t bytes) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(bytes));
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  HOTSET_CUDA_CHECK(cudaMemcpy(out.data(), data, out.size(), cudaMemcpyDeviceToHost));
  return out;
}
std::vector<std::uint8_t> bytes_of(const PackedMatrix& matrix) {
  return bytes_at(dynamic_cast<const WeightMatrix&>(matrix).data(), matrix.bytes());
}

struct Bed {
  explicit Bed(ElementType type) : backend(make_cuda_backend(find_gpu().value(), stream, type)) {}
  DeviceStream stream;
  std::unique_ptr<DenseBackend> backend;
};

TEST_P(RandomFill, MatrixIsTheHosts) {
  Bed bed(GetParam());
  const RandomNumbers transposed{.seed = 5,
                                 .deviation = 0.02F,
                                 .first = 7,
                                 .group_rows = 16,
                                 .group_step = 16 * 40,
                                 .row_step = 1,
                                 .col_step = 16};
  for (const RandomNumbers& numbers : {random_rows(3, 1.5F, 33), transposed}) {
    const std::int64_t cols = numbers.col_step == 1 ? 33 : 40;
    const auto made = bed.backend->random_matrix(numbers, 48, cols);
    const auto packed = bed.backend->DenseBackend::random_matrix(numbers, 48, cols);
    EXPECT_EQ(bytes_of(*made), bytes_of(*packed));
  }
}

TEST_P(RandomFill, BatchIsTheHosts) {
  Bed bed(GetParam());
  const RandomNumbers numbers{.seed = 8, .deviation = 0.5F, .group_rows = 24, .group_step = 5000, .row_step = 32};
  const auto made = bed.backend->random_batch(numbers, 5, 24, 32);
  const auto packed = bed.backend->DenseBackend::random_batch(numbers, 5, 24, 32);
  ASSERT_EQ(made.size(), packed.size());
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_EQ(bytes_of(*made[i]), bytes_of(*packed[i])) << i;
}

TEST_P(RandomFill, JoinedOnesAreTheirParts) {
  Bed bed(GetParam());
  const std::vector<DenseBackend::RandomPart> parts = {{random_rows(3, 1.0F, 32), 24, 32},
                                                       {random_rows(4, 0.5F, 32), 8, 32}};
  const JoinedMatrices made = bed.backend->random_joined(parts);
  std::vector<std::vector<std::uint16_t>> bits;
  std::vector<MatrixView> views;
  for (const auto& part : parts) bits.push_back(random_matrix_bits(part.numbers, part.rows, part.cols));
  for (const auto& one : bits)
    views.push_back({WeightType::kBF16, std::ssize(one) / 32, 32, std::as_bytes(std::span(one))});
  const JoinedMatrices packed = bed.backend->pack_joined(views);
  for (const JoinedMatrices* joined : {&made, &packed}) {
    ASSERT_EQ(joined->all->rows(), 32);
    std::vector<std::uint8_t> expected;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::vector<std::uint8_t> part = bytes_of(*bed.backend->pack(views[i]));
      EXPECT_EQ(bytes_of(*joined->parts[i]), part);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(bytes_of(*joined->all), expected);
  }
}

TEST_P(RandomFill, ExpertsAreTheHosts) {
  Bed bed(GetParam());
  const ExpertsShape shape{.count = 3, .hidden = 48, .intermediate = 32};
  const auto made = bed.backend->make_experts(shape);
  const auto packed = bed.backend->make_experts(shape);
  made->set_random(shape, 4, 0.25F, 0.5F);
  packed->PackedExperts::set_random(shape, 4, 0.25F, 0.5F);
  const ExpertWeights a = dynamic_cast<const DeviceExperts&>(*made).weights();
  const ExpertWeights b = dynamic_cast<const DeviceExperts&>(*packed).weights();
  const std::int64_t part = shape.count * shape.hidden * shape.intermediate * element_bytes(GetParam());
  EXPECT_EQ(bytes_at(a.gate_up, 2 * part), bytes_at(b.gate_up, 2 * part));
  EXPECT_EQ(bytes_at(a.down, part), bytes_at(b.down, part));
}

INSTANTIATE_TEST_SUITE_P(Types, RandomFill, ::testing::Values(ElementType::kF32, ElementType::kBF16));

}  // namespace
}  // namespace hotset::kernels::cuda
