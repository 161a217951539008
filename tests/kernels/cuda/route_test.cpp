#include "kernels/cuda/route.h"

#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {
namespace {

using RouteDevice = GpuTest;

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

// With 64 canaries behind both outputs.
Routed route_on_device(const RouteParams& host, const std::vector<float>& logits, const std::vector<float>& bias) {
  constexpr std::size_t kCanaries = 64;
  const auto count = static_cast<std::size_t>(host.rows * host.per_token);
  DeviceBuffer<float> device_logits(logits.size()), device_bias(bias.size() + 1), weights(count + kCanaries);
  DeviceBuffer<std::int32_t> ids(count + kCanaries);
  device_logits.upload(logits.data(), logits.size());
  device_bias.upload(bias.data(), bias.size());
  ids.fill_bytes(0x55);
  weights.fill_bytes(0x55);
  RouteParams params = host;
  params.logits = device_logits.data();
  params.bias = host.bias == nullptr ? nullptr : device_bias.data();
  params.ids = ids.data();
  params.weights = weights.data();
  launch_route(params, nullptr);
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  Routed out;
  out.ids.resize(count + kCanaries);
  out.weights.resize(count + kCanaries);
  ids.download(out.ids.data(), out.ids.size());
  weights.download(out.weights.data(), out.weights.size());
  for (std::size_t i = count; i < count + kCanaries; ++i) {
    EXPECT_EQ(out.ids[i], 0x55555555) << "written behind the ids, element " << i - count;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(out.weights[i]), 0x55555555U) << "written behind the weights";
  }
  out.ids.resize(count);
  out.weights.resize(count);
  return out;
}

void expect_as_cpu(Backend& cpu, RouteParams params, const std::vector<float>& logits, const std::vector<float>& bias) {
  const auto count = static_cast<std::size_t>(params.rows * params.per_token);
  Routed expected{std::vector<std::int32_t>(count), std::vector<float>(count)};
  RouteParams host = params;
  host.logits = logits.data();
  host.ids = expected.ids.data();
  host.weights = expected.weights.data();
  cpu.route(host);
  const Routed got = route_on_device(params, logits, bias);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(got.ids[i], expected.ids[i])
        << params.experts << " experts, " << params.groups << " groups, " << params.top_groups << " of them, "
        << params.per_token << " per token, " << (params.softmax ? "softmax" : "sigmoid") << ", row "
        << i / static_cast<std::size_t>(params.per_token) << ", place "
        << i % static_cast<std::size_t>(params.per_token);
  }
  ASSERT_TRUE(same_bits(got.weights, expected.weights)) << params.experts << " experts, softmax " << params.softmax;
}

struct Shape {
  std::int32_t experts, per_token, groups, top_groups;
};

TEST_F(RouteDevice, SameBitsAsTheCpu) {
  Random random;
  const auto cpu = make_cpu_backend(1);
  for (const Shape& s :
       {Shape{256, 8, 8, 4}, Shape{160, 6, 8, 3}, Shape{64, 6, 1, 1}, Shape{128, 8, 1, 1}, Shape{512, 10, 1, 1},
        Shape{512, 512, 1, 1}, Shape{7, 3, 7, 5}, Shape{1, 1, 1, 1}, Shape{48, 5, 16, 2}, Shape{96, 40, 2, 2}})
    for (const bool softmax : {false, true})
      for (const bool with_bias : {false, true})
        for (const int kind : {0, 1, 2}) {  // any numbers, many ties, NaN and infinities among them
          RouteParams params;
          params.experts = s.experts;
          params.per_token = s.per_token;
          params.groups = s.groups;
          params.top_groups = s.top_groups;
          params.softmax = softmax;
          params.group_by_best = softmax != with_bias;
          params.normalised = kind != 1;
          params.scaling_factor = 2.5F;
          params.rows = s.experts > 200 ? 37 : 130;
          std::vector<float> logits = random.normals(params.rows * s.experts);
          std::vector<float> bias = random.normals(s.experts);
          for (float& x : logits) {
            if (kind == 1) x = std::round(x);
            if (kind != 2) continue;
            const std::int64_t pick = random.integer(0, 9);
            if (pick == 0) x = kNan;
            if (pick == 1) x = -kInfinity;
            if (pick == 2 && !softmax) x = kInfinity;
          }
          for (float& x : bias) {
            if (kind == 1) x = std::round(x) * 0.0F;
            if (kind == 2 && random.integer(0, 19) == 0) x = kNan;
          }
          params.bias = with_bias ? bias.data() : nullptr;
          ASSERT_NO_FATAL_FAILURE(expect_as_cpu(*cpu, params, logits, bias));
        }
}

// A row alone and among others.
TEST_F(RouteDevice, RowsDoNotMeet) {
  Random random;
  RouteParams params;
  params.experts = 256;
  params.per_token = 8;
  params.groups = 8;
  params.top_groups = 4;
  params.rows = 33;
  const std::vector<float> logits = random.normals(params.rows * params.experts);
  const Routed all = route_on_device(params, logits, {});
  params.rows = 1;
  for (std::int64_t row = 0; row < 33; ++row) {
    const Routed one = route_on_device(params, slice(logits, row * 256, 256), {});
    ASSERT_EQ(one.ids, std::vector<std::int32_t>(all.ids.begin() + row * 8, all.ids.begin() + row * 8 + 8));
    ASSERT_TRUE(same_bits(one.weights, slice(all.weights, row * 8, 8)));
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
