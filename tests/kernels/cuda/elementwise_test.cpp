#include <algorithm>
#include <utility>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"
#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {
namespace {

using Elementwise = GpuTest;
constexpr ActivationType kTypes[] = {ActivationType::kF32, ActivationType::kBF16};
constexpr float kPoison = -55.0F;  // exact in bfloat16

const char* name(ActivationType type) { return type == ActivationType::kF32 ? "f32" : "bf16"; }

DeviceBuffer<float> floats(const std::vector<float>& values) {
  DeviceBuffer<float> buffer(std::max<std::size_t>(values.size(), 1));
  buffer.upload(values.data(), values.size());
  return buffer;
}

// |got - expected| <= tolerance * scale, and half a step of bfloat16 (2^-8 of the value, with room for a value that
// lies at the middle of two).
void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float scale, float tolerance,
                 ActivationType type, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float step = type == ActivationType::kBF16 ? std::abs(expected[i]) * 0x1p-8F : 0.0F;
    const float bound = tolerance * scale + step;
    ASSERT_TRUE(std::abs(got[i] - expected[i]) <= bound)
        << what << ", element " << i << ": " << got[i] << ", expected " << expected[i] << ", bound " << bound;
  }
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float x : values) most = std::max(most, std::abs(x));
  return most;
}

// Rows of `stride` floats, of which the first `width` are used; the rest is poison.
std::vector<float> strided(const std::vector<float>& rows, std::int64_t width, std::int64_t stride) {
  const std::size_t count = rows.size() / static_cast<std::size_t>(width);
  std::vector<float> out(count * static_cast<std::size_t>(stride), kPoison);
  for (std::size_t row = 0; row < count; ++row)
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(row) * width, width,
                out.begin() + static_cast<std::ptrdiff_t>(row) * stride);
  return out;
}

std::vector<float> packed(const std::vector<float>& rows, std::int64_t width, std::int64_t stride) {
  std::vector<float> out;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    if (static_cast<std::int64_t>(at) % stride < width) {
      out.push_back(rows[at]);
    } else {
      EXPECT_EQ(rows[at], kPoison) << "written between rows, element " << at << ", stride " << stride;
    }
  }
  return out;
}

struct NormCase {
  std::int64_t rows, width, stride;
  std::size_t offset;
};
constexpr NormCase kNormCases[] = {{1, 1, 1, 0},       {3, 7, 9, 1},         {9, 64, 64, 0},     {17, 128, 192, 0},
                                   {5, 512, 512, 0},   {5, 512, 512, 1},     {2, 513, 513, 0},   {3, 520, 528, 0},
                                   {4, 4096, 4096, 0}, {2, 7168, 7168, 0},   {2, 7168, 7169, 3}, {1, 8192, 8192, 0},
                                   {2, 8200, 8208, 0}, {1, 20000, 20000, 0}, {300, 80, 80, 0}};

// `layer`: LayerNorm instead of RMSNorm.
std::vector<float> device_norm(const NormCase& c, bool layer, const std::vector<float>& in,
                               const std::vector<float>& weight, const std::vector<float>& bias, ActivationType in_type,
                               ActivationType out_type) {
  const DeviceValues source(strided(in, c.width, c.stride), in_type, c.offset);
  const std::size_t rows = in.size() / static_cast<std::size_t>(c.width);
  const DeviceValues target(std::vector<float>(rows * static_cast<std::size_t>(c.stride), kPoison), out_type, c.offset);
  const auto weights = floats(weight);
  const auto biases = floats(bias);
  if (layer) {
    launch_layer_norm({source.data(), in_type, c.stride, weights.data(), biases.data(), target.data(), out_type,
                       c.stride, static_cast<std::int64_t>(rows), c.width, 1e-5F},
                      nullptr);
  } else {
    launch_rms_norm({source.data(), in_type, c.stride, weights.data(), target.data(), out_type, c.stride,
                     static_cast<std::int64_t>(rows), c.width, 1e-5F},
                    nullptr);
  }
  return packed(target.values(), c.width, c.stride);
}

TEST_F(Elementwise, NormsAsOnTheCpu) {
  Random random;
  const auto cpu = make_cpu_backend(2);
  for (const NormCase& c : kNormCases)
    for (const ActivationType in_type : kTypes)
      for (const ActivationType out_type : kTypes)
        for (const bool layer : {false, true}) {
          std::vector<float> in = random.normals(c.rows * c.width);
          for (float& x : in) x += layer ? 3.0F : 0.0F;
          if (c.rows > 1) {
            std::fill_n(in.begin(), c.width, 0.0F);  // a row of zeros
            in[static_cast<std::size_t>(c.width)] = 1000.0F;
          }
          in = rounded(in, in_type);
          const std::vector<float> weight = random.normals(c.width);
          const std::vector<float> bias = random.normals(c.width);
          std::vector<float> expected(in.size());
          if (layer) {
            cpu->layer_norm({in.data(), weight.data(), bias.data(), expected.data(), c.rows, c.width, 1e-5F});
          } else {
            cpu->rms_norm({in.data(), weight.data(), expected.data(), c.rows, c.width, 0, 1e-5F});
          }
          const std::string what = std::string(layer ? "layer norm " : "RMS norm ") + std::to_string(c.rows) + " x " +
                                   std::to_string(c.width) + ", stride " + std::to_string(c.stride) + ", offset " +
                                   std::to_string(c.offset) + ", " + name(in_type) + " to " + name(out_type);
          const std::vector<float> got = device_norm(c, layer, in, weight, bias, in_type, out_type);
          const float scale = std::max(1.0F, largest(expected));
          ASSERT_NO_FATAL_FAILURE(expect_near(got, expected, scale, layer ? 2e-5F : 4e-6F, out_type, what));
          ASSERT_TRUE(same_bits(got, device_norm(c, layer, in, weight, bias, in_type, out_type))) << what;
          // The last row alone, and at the other alignment.
          const std::vector<float> last = slice(in, (c.rows - 1) * c.width, c.width);
          const NormCase alone{1, c.width, c.stride, c.offset == 0 ? std::size_t{1} : std::size_t{0}};
          ASSERT_TRUE(same_bits(slice(got, (c.rows - 1) * c.width, c.width),
                                device_norm(alone, layer, last, weight, bias, in_type, out_type)))
              << what << ", the last row alone";
        }
}

TEST_F(Elementwise, AddAndNormIsTheTwoSteps) {
  Random random;
  for (const NormCase& c : kNormCases)
    for (const ActivationType type : kTypes)
      for (const ActivationType residual_type : kTypes) {
        const std::vector<float> x = rounded(random.normals(c.rows * c.width), type);
        std::vector<float> sum = rounded(random.normals(c.rows * c.width), residual_type);
        const std::vector<float> weight = random.normals(c.width);
        const DeviceValues residual(strided(sum, c.width, c.stride), residual_type, c.offset);
        const DeviceValues in_out(strided(x, c.width, c.stride), type, c.offset);
        const auto weights = floats(weight);
        AddRmsNormDeviceParams params;
        params.x = in_out.data();
        params.residual = residual.data();
        params.out = in_out.data();  // in place
        params.x_stride = params.residual_stride = params.out_stride = c.stride;
        params.residual_type = residual_type;
        params.type = type;
        params.weight = weights.data();
        params.rows = c.rows;
        params.width = c.width;
        params.epsilon = 1e-5F;
        launch_add_rms_norm(params, nullptr);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
        sum = rounded(sum, residual_type);
        const std::string what =
            std::to_string(c.rows) + " x " + std::to_string(c.width) + " " + name(type) + " on " + name(residual_type);
        ASSERT_TRUE(same_bits(packed(residual.values(), c.width, c.stride), sum)) << what;
        ASSERT_TRUE(same_bits(packed(in_out.values(), c.width, c.stride),
                              device_norm(c, false, sum, weight, weight, residual_type, type)))
            << what;
      }
}

struct RopeCase {
  std::int64_t rows;
  std::int32_t heads, head_dim, rotary_begin, rotary_dim;
  std::int64_t more_stride;  // elements between rows
  std::size_t offset;
};
constexpr RopeCase kRopeCases[] = {
    {1, 1, 128, 0, 128, 0, 0}, {5, 32, 128, 0, 128, 64, 0}, {3, 128, 192, 128, 64, 0, 0}, {7, 3, 64, 0, 64, 0, 1},
    {2, 5, 80, 0, 32, 0, 0},   {2, 4, 96, 8, 20, 5, 0},     {2, 2, 10, 3, 6, 0, 0},       {1, 2, 2, 0, 2, 0, 0},
    {2, 3, 512, 0, 512, 0, 0}, {40, 1, 576, 512, 64, 0, 0}, {2, 2, 64, 16, 0, 0, 0}};

TEST_F(Elementwise, RopeAsOnTheCpu) {
  Random random;
  const auto cpu = make_cpu_backend(2);
  for (const RopeCase& c : kRopeCases)
    for (const ActivationType type : kTypes)
      for (const bool norm : {false, true}) {
        const std::int64_t width = std::int64_t{c.heads} * c.head_dim;
        const std::int64_t stride = width + c.more_stride;
        const std::vector<float> x = rounded(random.normals(c.rows * width), type);
        const std::vector<float> weight = random.normals(c.head_dim);
        std::vector<float> frequencies;
        for (std::int32_t i = 0; i < c.rotary_dim / 2; ++i) {
          frequencies.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / c.rotary_dim)));
        }
        std::vector<std::int64_t> positions;
        for (std::int64_t row = 0; row < c.rows; ++row) {
          positions.push_back(row == 0 ? 2'147'483'647 : row == 1 ? 0 : random.integer(0, 1 << 21));
        }
        constexpr float kFactor = 1.3F;
        std::vector<float> expected = x;
        if (norm) {
          cpu->rms_norm({x.data(), weight.data(), expected.data(), c.rows * c.heads, c.head_dim, 0, 1e-6F});
        }
        if (c.rotary_dim > 0) {
          cpu->rope({expected.data() + c.rotary_begin, width, positions.data(), frequencies.data(), c.rows, c.heads,
                     c.head_dim, c.rotary_dim, kFactor});
        }
        positions.push_back(-1);  // a padded row
        std::vector<float> with_padding = x;
        with_padding.insert(with_padding.end(), static_cast<std::size_t>(width), 5.0F);
        expected.insert(expected.end(), static_cast<std::size_t>(width), 5.0F);
        const DeviceValues device(strided(with_padding, width, stride), type, c.offset);
        DeviceBuffer<std::int64_t> device_positions(positions.size());
        device_positions.upload(positions.data(), positions.size());
        const auto device_frequencies = floats(frequencies);
        const auto weights = floats(weight);
        const RopeDeviceParams params{device.data(),
                                      type,
                                      stride,
                                      device_positions.data(),
                                      device_frequencies.data(),
                                      c.rows + 1,
                                      c.heads,
                                      c.head_dim,
                                      c.rotary_begin,
                                      c.rotary_dim,
                                      kFactor,
                                      norm ? weights.data() : nullptr,
                                      1e-6F};
        launch_rope(params, nullptr);
        const std::string what = std::to_string(c.rows) + " rows of " + std::to_string(c.heads) + " x " +
                                 std::to_string(c.head_dim) + ", rotary " + std::to_string(c.rotary_begin) + " + " +
                                 std::to_string(c.rotary_dim) + ", " + name(type) + (norm ? ", norm" : "");
        const std::vector<float> got = packed(device.values(), width, stride);
        ASSERT_NO_FATAL_FAILURE(expect_near(got, expected, std::max(1.0F, largest(expected)), 4e-6F, type, what));
        if (!norm || type != ActivationType::kF32 || c.head_dim > 512) continue;
        // The norm and the rotation one by one.
        const DeviceValues apart(strided(with_padding, width, stride), type, c.offset);
        for (std::int64_t row = 0; row < c.rows; ++row) {
          float* const heads = static_cast<float*>(apart.data()) + row * stride;
          launch_rms_norm(
              {heads, type, c.head_dim, weights.data(), heads, type, c.head_dim, c.heads, c.head_dim, 1e-6F}, nullptr);
        }
        RopeDeviceParams rotation = params;
        rotation.x = apart.data();
        rotation.norm_weight = nullptr;
        launch_rope(rotation, nullptr);
        ASSERT_TRUE(same_bits(device.values(), apart.values())) << what;
      }
}

TEST_F(Elementwise, SiluGateAsOnTheCpu) {
  Random random;
  const auto cpu = make_cpu_backend(2);
  for (const auto& [rows, width] : {std::pair{1, 1}, {3, 7}, {2, 64}, {5, 2049}, {3, 18432}})
    for (const ActivationType in_type : kTypes)
      for (const ActivationType out_type : kTypes) {
        std::vector<float> gate = random.normals(std::int64_t{rows} * width);
        for (float& x : gate) x *= 4.0F;
        gate.front() = -200.0F;
        gate.back() = 100.0F;
        gate = rounded(gate, in_type);
        const std::vector<float> up = rounded(random.normals(std::int64_t{rows} * width), in_type);
        std::vector<float> expected(gate.size());
        cpu->silu_gate({gate.data(), up.data(), expected.data(), rows, width});
        // One matrix: gate, then up.
        std::vector<float> both;
        for (int row = 0; row < rows; ++row) {
          for (const std::vector<float>* part : {&std::as_const(gate), &up}) {
            both.insert(both.end(), part->begin() + std::int64_t{row} * width,
                        part->begin() + std::int64_t{row + 1} * width);
          }
        }
        const DeviceValues in(both, in_type);
        const DeviceValues out(std::vector<float>(gate.size(), kPoison), out_type);
        SiluGateDeviceParams params;
        params.gate = in.data();
        params.up =
            static_cast<std::byte*>(in.data()) + std::int64_t{width} * (in_type == ActivationType::kF32 ? 4 : 2);
        params.gate_stride = params.up_stride = 2 * std::int64_t{width};
        params.in_type = in_type;
        params.out = out.data();
        params.out_type = out_type;
        params.rows = rows;
        params.width = width;
        launch_silu_gate(params, nullptr);
        const std::vector<float> got = out.values();
        for (std::size_t i = 0; i < got.size(); ++i) {
          const float bound =
              std::abs(expected[i]) * (2e-6F + (out_type == ActivationType::kBF16 ? 0x1p-8F : 0.0F)) + 1e-30F;
          ASSERT_TRUE(std::abs(got[i] - expected[i]) <= bound)
              << rows << " x " << width << ", " << name(in_type) << " to " << name(out_type) << ", element " << i
              << ": gate " << gate[i] << ", up " << up[i] << ", got " << got[i] << ", expected " << expected[i];
        }
      }
}

TEST_F(Elementwise, EmbeddingRowsAreExact) {
  Random random;
  constexpr std::int64_t kVocabulary = 1001;
  for (const std::int64_t hidden : {1, 12, 64, 4096})
    for (const ActivationType table_type : kTypes)
      for (const ActivationType out_type : kTypes) {
        const std::vector<float> table = rounded(random.normals(kVocabulary * hidden), table_type);
        std::vector<std::int32_t> tokens = {0, 1000, -1, 1001, 2'000'000'000};
        for (int i = 0; i < 60; ++i) tokens.push_back(static_cast<std::int32_t>(random.integer(0, kVocabulary - 1)));
        std::vector<float> expected;
        for (const std::int32_t token : tokens) {
          for (std::int64_t c = 0; c < hidden; ++c) {
            expected.push_back(token >= 0 && token < kVocabulary ? table[static_cast<std::size_t>(token * hidden + c)]
                                                                 : 0.0F);
          }
        }
        const DeviceValues device_table(table, table_type);
        const DeviceValues out(std::vector<float>(expected.size(), kPoison), out_type);
        DeviceBuffer<std::int32_t> device_tokens(tokens.size());
        device_tokens.upload(tokens.data(), tokens.size());
        launch_embed({device_table.data(), table_type, device_tokens.data(), out.data(), out_type, 0,
                      static_cast<std::int64_t>(tokens.size()), kVocabulary, hidden},
                     nullptr);
        ASSERT_TRUE(same_bits(out.values(), rounded(expected, out_type)))
            << "hidden " << hidden << ", " << name(table_type) << " to " << name(out_type);
      }
}

}  // namespace
}  // namespace hotset::kernels::cuda
