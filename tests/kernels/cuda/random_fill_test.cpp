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

// FP8 where the backend keeps it: codes and scales of the host's.
class RandomFp8Fill : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    bed_ = std::make_unique<Bed>(ElementType::kBF16);
    if (!bed_->backend->takes_fp8(128, 128)) GTEST_SKIP() << "no Hopper GPU here";
  }

  // Packed from the host's numbers.
  struct HostMatrix {
    HostMatrix(const RandomNumbers& numbers, std::int64_t rows_given, std::int64_t cols_given)
        : rows(rows_given),
          cols(cols_given),
          codes(random_matrix_codes(numbers, rows, cols)),
          scales(static_cast<std::size_t>(fp8_scale_count(rows, cols)), numbers.fp8_scale()) {}
    [[nodiscard]] MatrixView view() const {
      return {WeightType::kFp8Block, rows, cols, std::as_bytes(std::span(codes)), scales};
    }
    std::int64_t rows, cols;
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
  };
  static RandomNumbers fp8_rows(std::uint64_t seed, float deviation, std::int64_t cols) {
    RandomNumbers numbers = random_rows(seed, deviation, cols);
    numbers.fp8 = true;
    return numbers;
  }
  static std::vector<std::uint8_t> scales_of(const PackedMatrix& matrix) {
    const auto& own = dynamic_cast<const WeightMatrix&>(matrix);
    return bytes_at(own.scales(), fp8_scale_count(own.rows(), own.cols()) * 4);
  }
  static std::vector<std::uint8_t> codes_of(const PackedMatrix& matrix) {
    return bytes_at(dynamic_cast<const WeightMatrix&>(matrix).data(), matrix.rows() * matrix.cols());
  }
  static void expect_same(const PackedMatrix& got, const PackedMatrix& expected) {
    ASSERT_NE(dynamic_cast<const WeightMatrix&>(got).scales(), nullptr);
    EXPECT_EQ(got.bytes(), fp8_weight_bytes(got.rows(), got.cols()));
    EXPECT_EQ(codes_of(got), codes_of(expected));
    EXPECT_EQ(scales_of(got), scales_of(expected));
  }
  std::unique_ptr<Bed> bed_;
};

TEST_F(RandomFp8Fill, MatrixIsTheHosts) {
  const RandomNumbers numbers = fp8_rows(3, 0.02F, 384);
  const HostMatrix host(numbers, 200, 384);
  const auto packed = bed_->backend->pack(host.view());
  EXPECT_EQ(codes_of(*packed), host.codes);
  expect_same(*bed_->backend->random_matrix(numbers, 200, 384), *packed);
  // Widths that are no multiples of 128, and rows of 8, are bfloat16.
  for (const auto& [rows, cols] : {std::pair{200, 320}, std::pair{201, 384}}) {
    const auto wide = bed_->backend->random_matrix(numbers, rows, cols);
    EXPECT_EQ(dynamic_cast<const WeightMatrix&>(*wide).scales(), nullptr);
    EXPECT_EQ(wide->bytes(), 2 * rows * cols);
  }
}

TEST_F(RandomFp8Fill, JoinedOnesAreTheirPartsOrLieApart) {
  for (const std::int64_t first : {256, 200}) {
    const std::vector<DenseBackend::RandomPart> parts = {{fp8_rows(3, 1.0F, 256), first, 256},
                                                         {fp8_rows(4, 0.5F, 256), 72, 256}};
    const HostMatrix one(parts[0].numbers, first, 256), two(parts[1].numbers, 72, 256);
    const std::vector<MatrixView> views = {one.view(), two.view()};
    const JoinedMatrices made = bed_->backend->random_joined(parts);
    const JoinedMatrices packed = bed_->backend->pack_joined(views);
    for (const JoinedMatrices* joined : {&made, &packed}) {
      ASSERT_EQ(joined->parts.size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) expect_same(*joined->parts[i], *bed_->backend->pack(views[i]));
      ASSERT_EQ(joined->all != nullptr, first == 256);
      if (joined->all == nullptr) continue;
      std::vector<std::uint8_t> codes = one.codes;
      codes.insert(codes.end(), two.codes.begin(), two.codes.end());
      EXPECT_EQ(codes_of(*joined->all), codes);
      std::vector<std::uint8_t> scales = scales_of(*joined->parts[0]);
      const auto more = scales_of(*joined->parts[1]);
      scales.insert(scales.end(), more.begin(), more.end());
      EXPECT_EQ(scales_of(*joined->all), scales);
    }
  }
}

TEST_F(RandomFp8Fill, ExpertsAreTheHosts) {
  const ExpertsShape shape{.count = 3, .hidden = 256, .intermediate = 128, .fp8 = true};
  const auto made = bed_->backend->make_experts(shape);
  const auto packed = bed_->backend->make_experts(shape);
  made->set_random(shape, 4, 0.25F, 0.5F);
  const std::int64_t part = shape.hidden * shape.intermediate;
  for (std::int32_t expert = 0; expert < shape.count; ++expert)
    for (const auto which : {PackedExperts::Part::kGate, PackedExperts::Part::kUp, PackedExperts::Part::kDown}) {
      const bool down = which == PackedExperts::Part::kDown;
      RandomNumbers numbers = fp8_rows(4, down ? 0.5F : 0.25F, down ? shape.intermediate : shape.hidden);
      numbers.first = (3 * std::int64_t{expert} + static_cast<int>(which)) * part;
      const HostMatrix host(numbers, down ? shape.hidden : shape.intermediate,
                            down ? shape.intermediate : shape.hidden);
      packed->set(expert, which, host.view());
    }
  const ExpertWeights a = dynamic_cast<const DeviceExperts&>(*made).weights();
  const ExpertWeights b = dynamic_cast<const DeviceExperts&>(*packed).weights();
  ASSERT_EQ(a.format, ExpertFormat::kFp8Block);
  EXPECT_EQ(made->bytes(), 3 * shape.count * fp8_weight_bytes(shape.hidden, shape.intermediate));
  EXPECT_EQ(bytes_at(a.gate_up, 6 * part), bytes_at(b.gate_up, 6 * part));
  EXPECT_EQ(bytes_at(a.down, 3 * part), bytes_at(b.down, 3 * part));
  EXPECT_EQ(bytes_at(a.gate_up_scales, 4 * 6 * 2), bytes_at(b.gate_up_scales, 4 * 6 * 2));
  EXPECT_EQ(bytes_at(a.down_scales, 4 * 3 * 2), bytes_at(b.down_scales, 4 * 3 * 2));
}

INSTANTIATE_TEST_SUITE_P(Types, RandomFill, ::testing::Values(ElementType::kF32, ElementType::kBF16));

}  // namespace
}  // namespace hotset::kernels::cuda
