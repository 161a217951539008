#include "kernels/cuda/convert.h"

#include <vector>

#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {
namespace {

constexpr float kPoison = -55.0F;  // exact in bfloat16

struct Shape {
  std::int64_t rows, width, in_stride, out_stride;
  std::size_t offset;  // elements that break the alignment
};

class ConvertRows : public GpuTest {
 protected:
  void check(const Shape& shape, ActivationType in_type, ActivationType out_type) {
    std::vector<float> in = rounded(random_.normals(shape.rows * shape.in_stride), in_type);
    // Numbers at the middle of two bfloat16, that become infinite, and that are no numbers.
    const std::vector<float> edges = {0.0F,      -0.0F, 0x1.01p0F, 0x1.03p0F,  -0x1.01p-126F,
                                      0x1p-133F, kNan,  kInfinity, -kInfinity, 0x1.fffffep127F};
    for (const float edge : edges) in[static_cast<std::size_t>(random_.integer(0, ssize(in) - 1))] = edge;
    in = rounded(in, in_type);
    std::vector<float> expected(static_cast<std::size_t>(shape.rows * shape.out_stride), kPoison);
    const DeviceValues device_in(in, in_type, shape.offset);
    const DeviceValues device_out(expected, out_type, shape.offset);
    for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
      const std::int64_t row = i / shape.width, at = i % shape.width;
      expected[static_cast<std::size_t>(row * shape.out_stride + at)] =
          in[static_cast<std::size_t>(row * shape.in_stride + at)];
    }
    launch_convert_rows({.in = device_in.data(),
                         .in_type = in_type,
                         .in_stride = shape.in_stride == shape.width ? 0 : shape.in_stride,
                         .out = device_out.data(),
                         .out_type = out_type,
                         .out_stride = shape.out_stride == shape.width ? 0 : shape.out_stride,
                         .rows = shape.rows,
                         .width = shape.width},
                        nullptr);
    EXPECT_TRUE(same_bits(rounded(expected, out_type), device_out.values()))
        << shape.rows << " rows of " << shape.width << ", " << shape.in_stride << " apart, to " << shape.out_stride
        << " apart, type " << static_cast<int>(in_type) << " to " << static_cast<int>(out_type);
  }

  static std::int64_t ssize(const std::vector<float>& x) { return static_cast<std::int64_t>(x.size()); }

  Random random_;
};

TEST_F(ConvertRows, BitsOfTheCpuRounding) {
  for (const Shape& shape :
       {Shape{1, 1, 1, 1, 0}, Shape{3, 7, 7, 9, 0}, Shape{5, 64, 64, 64, 0}, Shape{5, 64, 72, 576, 0},
        Shape{37, 576, 576, 600, 0}, Shape{9, 64, 64, 72, 1}, Shape{1000, 4096, 4096, 4096, 0}}) {
    for (const ActivationType in_type : {ActivationType::kF32, ActivationType::kBF16}) {
      for (const ActivationType out_type : {ActivationType::kF32, ActivationType::kBF16}) {
        check(shape, in_type, out_type);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(ConvertRows, NoRowsWriteNothing) {
  const DeviceValues out(std::vector<float>(16, kPoison), ActivationType::kF32);
  const DeviceValues in(std::vector<float>(16, 1.0F), ActivationType::kF32);
  launch_convert_rows({.in = in.data(), .out = out.data(), .rows = 0, .width = 16}, nullptr);
  launch_convert_rows({.in = in.data(), .out = out.data(), .rows = 4, .width = 0}, nullptr);
  EXPECT_EQ(out.values(), std::vector<float>(16, kPoison));
}

}  // namespace
}  // namespace hotset::kernels::cuda
