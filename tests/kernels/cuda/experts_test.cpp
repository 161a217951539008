#include "kernels/cuda/experts.h"

#include <numeric>

#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/fp8_values.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

bool is_hopper_device() {
  int major = 0;
  HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major == 9;
}

struct Shape {
  ExpertFormat format;
  std::int32_t experts, per_token;
  std::int64_t hidden, intermediate;
};

// Weights of all experts, on the host as numbers and on the device as the format has them.
class Weights {
 public:
  Weights(const Shape& shape, Random& random) : shape_(shape) {
    const std::int64_t up_rows = 2 * shape.intermediate;
    for (std::int32_t e = 0; e < shape.experts; ++e) {
      add(up_rows, shape.hidden, random, gate_up_, gate_up_codes_, gate_up_scales_);
      add(shape.hidden, shape.intermediate, random, down_, down_codes_, down_scales_);
    }
    device_ = {shape.format, shape.experts, shape.hidden, shape.intermediate};
    if (shape.format == ExpertFormat::kFp8Block) {
      device_.gate_up = upload(gate_up_codes_);
      device_.down = upload(down_codes_);
      device_.gate_up_scales = static_cast<const float*>(upload(gate_up_scales_));
      device_.down_scales = static_cast<const float*>(upload(down_scales_));
    } else if (shape.format == ExpertFormat::kBF16) {
      device_.gate_up = upload(halves(gate_up_));
      device_.down = upload(halves(down_));
    } else {
      device_.gate_up = upload(gate_up_);
      device_.down = upload(down_);
    }
  }
  [[nodiscard]] const ExpertWeights& device() const { return device_; }
  // Row `row` of gate and up together (up's begin at `intermediate`).
  [[nodiscard]] const float* gate_up(std::int32_t expert, std::int64_t row) const {
    return gate_up_.data() + (expert * 2 * shape_.intermediate + row) * shape_.hidden;
  }
  [[nodiscard]] const float* down(std::int32_t expert, std::int64_t row) const {
    return down_.data() + (expert * shape_.hidden + row) * shape_.intermediate;
  }

 private:
  void add(std::int64_t rows, std::int64_t cols, Random& random, std::vector<float>& values,
           std::vector<std::uint8_t>& codes, std::vector<float>& scales) const {
    if (shape_.format == ExpertFormat::kFp8Block) {
      const Fp8Weight weight(rows, cols, random);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) values.push_back(static_cast<float>(weight.value(r, c)));
      codes.insert(codes.end(), weight.codes.begin(), weight.codes.end());
      scales.insert(scales.end(), weight.scales.begin(), weight.scales.end());
      return;
    }
    std::vector<float> made = random.normals(rows * cols);
    for (float& x : made) x *= 0.1F;
    if (shape_.format == ExpertFormat::kBF16) made = rounded(std::move(made), ActivationType::kBF16);
    values.insert(values.end(), made.begin(), made.end());
  }
  static std::vector<std::uint16_t> halves(const std::vector<float>& values) {
    std::vector<std::uint16_t> out(values.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = f32_to_bf16(values[i]);
    return out;
  }
  template <class T>
  const void* upload(const std::vector<T>& values) {
    memory_.emplace_back(values.size() * sizeof(T));
    memory_.back().upload(reinterpret_cast<const std::byte*>(values.data()), memory_.back().size());
    return memory_.back().data();
  }

  Shape shape_;
  std::vector<float> gate_up_, down_, gate_up_scales_, down_scales_;
  std::vector<std::uint8_t> gate_up_codes_, down_codes_;
  std::vector<DeviceBuffer<std::byte>> memory_;
  ExpertWeights device_;
};

struct Batch {
  std::int64_t rows;
  std::vector<float> x, weights, before;
  std::vector<std::int32_t> ids;
};

// `skewed`: most rows meet the first expert. Order of the ids in a row: any.
Batch make_batch(const Shape& s, std::int64_t rows, bool skewed, Random& random) {
  Batch batch{
      rows, random.normals(rows * s.hidden), random.normals(rows * s.per_token), random.normals(rows * s.hidden), {}};
  std::vector<std::int32_t> all(static_cast<std::size_t>(s.experts));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::shuffle(all.begin(), all.end(), random.engine());
    if (skewed) std::swap(*std::find(all.begin(), all.end(), 0), all[0]);
    batch.ids.insert(batch.ids.end(), all.begin(), all.begin() + s.per_token);
  }
  return batch;
}

std::vector<float> run(const Shape& s, const Weights& weights, const Batch& batch) {
  const DeviceValues x(batch.x, ActivationType::kF32);
  const DeviceValues out(batch.before, ActivationType::kF32);
  const DeviceValues factors(batch.weights, ActivationType::kF32);
  DeviceBuffer<std::int32_t> ids(batch.ids.size());
  ids.upload(batch.ids.data(), batch.ids.size());
  DeviceBuffer<std::byte> workspace(experts_workspace_bytes(weights.device(), batch.rows, s.per_token));
  workspace.fill_bytes(0xff);
  ExpertsDeviceParams params;
  params.experts = weights.device();
  params.x = x.data();
  params.ids = ids.data();
  params.weights = static_cast<const float*>(factors.data());
  params.per_token = s.per_token;
  params.rows = batch.rows;
  params.out = static_cast<float*>(out.data());
  params.workspace = workspace.data();
  launch_experts(params, nullptr);
  return out.values();
}

Batch part(const Shape& s, const Batch& batch, std::int64_t first, std::int64_t rows) {
  Batch out{rows,
            slice(batch.x, first * s.hidden, rows * s.hidden),
            slice(batch.weights, first * s.per_token, rows * s.per_token),
            slice(batch.before, first * s.hidden, rows * s.hidden),
            {}};
  out.ids.assign(batch.ids.begin() + first * s.per_token, batch.ids.begin() + (first + rows) * s.per_token);
  return out;
}

// x or silu(gate) * up as the products read it.
std::vector<double> as_read(ExpertFormat format, const std::vector<float>& row) {
  if (format == ExpertFormat::kFp8Block) return quantised(row);
  std::vector<double> out(row.begin(), row.end());
  if (format == ExpertFormat::kBF16) {
    for (double& x : out) x = bf16_to_f32(f32_to_bf16(static_cast<float>(x)));
  }
  return out;
}

double dot(const std::vector<double>& x, const float* weight) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * double{weight[i]};
  return sum;
}

// What a step of rounding may move where a gated value lies next to a boundary: a few values by one step.
void expect_row(const Shape& s, const Weights& weights, const Batch& batch, const std::vector<float>& got,
                std::int64_t row) {
  const std::vector<double> x = as_read(s.format, slice(batch.x, row * s.hidden, s.hidden));
  const auto hidden = static_cast<std::size_t>(s.hidden);
  const float* const before = batch.before.data() + row * s.hidden;
  std::vector<double> sum(before, before + hidden), magnitude(hidden), largest(hidden);
  for (std::int32_t i = 0; i < s.per_token; ++i) {
    const std::int32_t expert = batch.ids[static_cast<std::size_t>(row * s.per_token + i)];
    if (expert < 0) continue;
    const double factor = batch.weights[static_cast<std::size_t>(row * s.per_token + i)];
    std::vector<float> gated;
    for (std::int64_t c = 0; c < s.intermediate; ++c) {
      const double gate = dot(x, weights.gate_up(expert, c));
      gated.push_back(
          static_cast<float>(gate / (1 + std::exp(-gate)) * dot(x, weights.gate_up(expert, s.intermediate + c))));
    }
    const std::vector<double> inner = as_read(s.format, gated);
    for (std::size_t c = 0; c < hidden; ++c) {
      const float* const down = weights.down(expert, static_cast<std::int64_t>(c));
      for (std::size_t k = 0; k < inner.size(); ++k) {
        const double term = factor * inner[k] * double{down[k]};
        sum[c] += term;
        magnitude[c] += std::abs(term);
        largest[c] = std::max(largest[c], std::abs(term));
      }
    }
  }
  const bool fp8 = s.format == ExpertFormat::kFp8Block;
  const double unit = fp8 ? 0x1p-10 : s.format == ExpertFormat::kBF16 ? 0x1p-16 : 0x1p-19;
  const double step = fp8 ? 0x1p-2 : s.format == ExpertFormat::kBF16 ? 0x1p-6 : 0.0;
  for (std::size_t c = 0; c < hidden; ++c) {
    const float value = got[static_cast<std::size_t>(row) * hidden + c];
    ASSERT_LE(std::abs(value - sum[c]), magnitude[c] * unit + largest[c] * step + 1e-6)
        << s.experts << " experts, " << s.hidden << " x " << s.intermediate << ", format " << static_cast<int>(s.format)
        << ", row " << row << " of " << batch.rows << ", channel " << c << ": got " << value << ", expected " << sum[c]
        << ", magnitude " << magnitude[c];
  }
}

const std::vector<Shape> kShapes = {
    {ExpertFormat::kF32, 4, 2, 48, 16},        {ExpertFormat::kF32, 9, 3, 144, 80},
    {ExpertFormat::kBF16, 4, 2, 48, 16},       {ExpertFormat::kBF16, 6, 3, 144, 80},
    {ExpertFormat::kBF16, 5, 2, 512, 320},     {ExpertFormat::kFp8Block, 3, 1, 128, 128},
    {ExpertFormat::kFp8Block, 5, 2, 512, 384},
};

class ExpertsDevice : public GpuTestWithParam<int> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && shape().format == ExpertFormat::kFp8Block && !is_hopper_device()) {
      GTEST_SKIP() << "no Hopper GPU here";
    }
  }
  static const Shape& shape() { return kShapes[static_cast<std::size_t>(GetParam())]; }
};

TEST_P(ExpertsDevice, AsInDouble) {
  Random random;
  const Shape& s = shape();
  const Weights weights(s, random);
  for (const std::int64_t rows : {1, 7, 70, 300})
    for (const bool skewed : {false, true}) {
      Batch batch = make_batch(s, rows, skewed, random);
      if (rows == 7) {  // a padded row
        for (std::int32_t i = 0; i < s.per_token; ++i) batch.ids[static_cast<std::size_t>(3 * s.per_token + i)] = -1;
      }
      const std::vector<float> got = run(s, weights, batch);
      for (std::int64_t row = 0; row < rows; row += rows > 100 ? 37 : rows > 10 ? 11 : 1) {
        ASSERT_NO_FATAL_FAILURE(expect_row(s, weights, batch, got, row));
      }
      if (rows == 7) {
        ASSERT_TRUE(same_bits(slice(got, 3 * s.hidden, s.hidden), slice(batch.before, 3 * s.hidden, s.hidden)));
      }
    }
}

// Other numbers of rows take other tiles; the order of the ids in a row is free.
TEST_P(ExpertsDevice, ARowHasItsOwnBits) {
  Random random;
  const Shape& s = shape();
  const Weights weights(s, random);
  const Batch batch = make_batch(s, 700, true, random);
  const std::vector<float> all = run(s, weights, batch);
  ASSERT_TRUE(same_bits(run(s, weights, batch), all)) << "the same twice";
  for (const std::int64_t rows : {1, 5, 12, 30, 60, 100, 190, 260}) {
    const std::int64_t first = rows * 7 % (batch.rows - rows);
    Batch some = part(s, batch, first, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::reverse(some.ids.begin() + row * s.per_token, some.ids.begin() + (row + 1) * s.per_token);
      std::reverse(some.weights.begin() + row * s.per_token, some.weights.begin() + (row + 1) * s.per_token);
    }
    ASSERT_TRUE(same_bits(run(s, weights, some), slice(all, first * s.hidden, rows * s.hidden))) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertsDevice, ::testing::Range(0, static_cast<int>(kShapes.size())));

}  // namespace
}  // namespace hotset::kernels::cuda
