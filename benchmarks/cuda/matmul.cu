// Products: Llama-3.1-8B's by cuBLASLt, products side by side as latent attention has them, FP8 with block scales,
// mixture of experts as DeepSeek-V3 has it, and its router.
//
//   matmul
//
// A graph replay each, 256 MB written before it. Floor: the larger of bytes / 4.2 TB/s and operations / 989 TFLOP/s
// (FP8: 1,979). "places": whether a row gives the same bits at every place of the product; "as m = 1": whether they are
// those of the row alone. Peer of the FP8 products: cuBLASLt's own block scales, of ready codes.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "benchmarks/cuda/graph_time.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/fp8_matmul.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/route.h"

namespace hotset::kernels::cuda {
namespace {

constexpr double kBytesPerUs = 4.2e6;
constexpr double kBf16PerUs = 989e6;
constexpr double kFp8PerUs = 1979e6;
constexpr int kRepeats = 15;
constexpr std::size_t kWeightBytes = std::size_t{24} << 30;
constexpr std::int64_t kMostRows = 4096;

enum class Fill { kBf16, kE4m3, kScales };

// Numbers of a size that keeps products in range, different everywhere.
__global__ void fill_kernel(std::uint32_t* words, std::size_t count, Fill fill) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ULL;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ULL;
    const auto bits = static_cast<std::uint32_t>(x >> 32);
    switch (fill) {
      case Fill::kBf16: words[i] = (bits & 0x80ff80ffU) | 0x3c003c00U; break;  // +-2^-7 ... 2^-5
      case Fill::kE4m3: words[i] = (bits & 0x8f8f8f8fU) | 0x30303030U; break;  // +-0.5 ... 1.9
      case Fill::kScales: words[i] = 0x3c000000U | (bits & 0x7fffffU); break;
    }
  }
}

class Bench {
 public:
  Bench() {
    dirty_.fill_bytes(0);
    refill(x_.data(), x_.bytes(), Fill::kBf16);
  }

  void run() {
    refill(weights_.data(), weights_.bytes(), Fill::kBf16);
    std::printf("%-30s %6s %10s %10s %6s %8s %8s %8s %7s %8s\n", "product", "m", "us", "floor us", "ratio", "TFLOP/s",
                "GB/s", "peer us", "places", "as m = 1");
    dense();
    side_by_side();
    router();
    experts(ExpertFormat::kBF16, "experts bf16, 8 of 256");
    refill(weights_.data(), weights_.bytes(), Fill::kE4m3);
    experts(ExpertFormat::kFp8Block, "experts FP8, 8 of 256");
    fp8();
  }

 private:
  struct Row {
    std::string name;
    std::int64_t m = 0;
    double bytes = 0;
    double operations = 0;
    double peak = kBf16PerUs;
    double peer = 0;
    const char* places = "-";
    const char* as_one = "-";
  };

  static void refill(void* memory, std::size_t bytes, Fill fill) {
    fill_kernel<<<2048, 256>>>(static_cast<std::uint32_t*>(memory), bytes / 4, fill);
    HOTSET_CUDA_CHECK_LAUNCH();
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }

  template <class Launch>
  double time(const Launch& launch) {
    return graph_time_us(stream_.get(), kRepeats, launch, [&](cudaStream_t stream) {
      HOTSET_CUDA_CHECK(cudaMemsetAsync(dirty_.data(), 0, dirty_.bytes(), stream));
    });
  }
  static void print(const Row& row, double us) {
    const double floor = std::max(row.bytes / kBytesPerUs, row.operations / row.peak);
    char peer[16] = "-";
    if (row.peer > 0) std::snprintf(peer, sizeof peer, "%.1f", row.peer);
    std::printf("%-30s %6lld %10.2f %10.2f %6.2f %8.0f %8.0f %8s %7s %8s\n", row.name.c_str(),
                static_cast<long long>(row.m), us, floor, us / floor, row.operations / us * 1e-6, row.bytes / us * 1e-3,
                peer, row.places, row.as_one);
    std::fflush(stdout);
  }

  // Every row of x is its first: so must be the products.
  void dense() {
    struct Shape {
      const char* name;
      std::int64_t n, k;
      ActivationType y_type;
    };
    for (const Shape& s : {Shape{"q, k, v 6144 x 4096", 6144, 4096, ActivationType::kBF16},
                           Shape{"output 4096 x 4096, += f32", 4096, 4096, ActivationType::kF32},
                           Shape{"gate, up 28672 x 4096", 28'672, 4096, ActivationType::kBF16},
                           Shape{"down 4096 x 14336, += f32", 4096, 14'336, ActivationType::kF32},
                           Shape{"vocabulary 128256 x 4096, f32", 128'256, 4096, ActivationType::kF32}}) {
      std::vector<std::byte> alone;
      for (const std::int64_t m : {1, 8, 32, 64, 256, 4096}) {
        if (m == kMostRows && s.n > 100'000) continue;
        MatmulShape shape;
        shape.m = m;
        shape.n = s.n;
        shape.k = s.k;
        shape.type = ActivationType::kBF16;
        shape.y_type = s.y_type;
        shape.accumulate = s.y_type == ActivationType::kF32 && s.n == 4096;
        Matmul matmul(library_, shape);
        const DeviceBuffer<std::byte> workspace(matmul.workspace_bytes() + 256);
        const MatmulOperands operands = {x_.data(), weights_.data(), nullptr, y_.data(), workspace.data()};
        const double size = s.y_type == ActivationType::kF32 ? 4 : 2;
        const auto md = static_cast<double>(m), nd = static_cast<double>(s.n), kd = static_cast<double>(s.k);
        Row row = {s.name, m, 2 * (md * kd + nd * kd) + md * nd * size * (shape.accumulate ? 2 : 1), 2 * md * nd * kd};
        const double us = time([&](Stream stream) { matmul.launch(operands, stream); });
        if (m <= 256) compare_places(shape, matmul, operands, alone, row);
        print(row, us);
      }
    }
  }

  void compare_places(const MatmulShape& shape, Matmul& matmul, MatmulOperands operands, std::vector<std::byte>& alone,
                      Row& row) {
    for (std::int64_t i = 0; i < shape.m; ++i) {
      HOTSET_CUDA_CHECK(cudaMemcpy(same_.data() + i * shape.k, x_.data(), static_cast<std::size_t>(2 * shape.k),
                                   cudaMemcpyDeviceToDevice));
    }
    y_.fill_bytes(0);
    operands.x = same_.data();
    matmul.launch(operands, stream_.get());
    stream_.synchronize();
    const auto bytes = static_cast<std::size_t>(shape.n * (shape.y_type == ActivationType::kF32 ? 4 : 2));
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(shape.m));
    HOTSET_CUDA_CHECK(cudaMemcpy(all.data(), y_.data(), all.size(), cudaMemcpyDeviceToHost));
    row.places = "same";
    for (std::int64_t i = 1; i < shape.m; ++i) {
      if (std::memcmp(all.data(), all.data() + static_cast<std::size_t>(i) * bytes, bytes) != 0) row.places = "differ";
    }
    all.resize(bytes);
    if (alone.empty()) alone = all;
    row.as_one = alone == all ? "same" : "differ";
  }

  // Queries of 128 heads (128 + 64 channels) times the heads' matrices [512, 128], and back.
  void side_by_side() {
    constexpr std::int64_t kHeads = 128, kWidth = 128, kRope = 64, kRank = 512;
    for (const bool back : {false, true})
      for (const std::int64_t m : {1, 8, 64, 256}) {
        MatmulShape shape;
        shape.m = m;
        shape.n = back ? kWidth : kRank;
        shape.k = back ? kRank : kWidth;
        shape.type = ActivationType::kBF16;
        shape.y_type = ActivationType::kBF16;
        shape.batch = kHeads;
        shape.x_step = back ? kRank : kWidth + kRope;
        shape.y_step = back ? kWidth : kRank + kRope;
        shape.x_stride = kHeads * shape.x_step;
        shape.y_stride = kHeads * shape.y_step;
        shape.weight_step = kRank * kWidth;
        Matmul matmul(library_, shape);
        const DeviceBuffer<std::byte> workspace(matmul.workspace_bytes() + 256);
        const auto md = static_cast<double>(m);
        const double us = time([&](Stream stream) {
          matmul.launch({x_.data(), weights_.data(), nullptr, y_.data(), workspace.data()}, stream);
        });
        print({back ? "128 heads, 128 x 512" : "128 heads, 512 x 128", m,
               2.0 * kHeads * (kRank * kWidth + md * (kRank + kWidth)), 2.0 * kHeads * kRank * kWidth * md},
              us);
      }
  }

  void router() {
    RouteParams params;
    params.experts = 256;
    params.per_token = 8;
    params.groups = 8;
    params.top_groups = 4;
    params.logits = reinterpret_cast<const float*>(x_.data());
    params.ids = ids_.data();
    params.weights = factors_.data();
    for (const std::int64_t m : {1, 64, 4096}) {
      params.rows = m;
      const double us = time([&](Stream stream) { launch_route(params, stream); });
      print({"router, 8 of 256", m, static_cast<double>(m) * (256 + 16) * 4}, us);
    }
  }

  void experts(ExpertFormat format, const char* name) {
    constexpr std::int32_t kExperts = 256, kPerToken = 8;
    constexpr std::int64_t kHidden = 7168, kInner = 2048;
    const bool fp8 = format == ExpertFormat::kFp8Block;
    const std::size_t size = fp8 ? 1 : 2;
    ExpertWeights weights = {format, kExperts, kHidden, kInner};
    weights.gate_up = weights_.data();
    weights.down = weights_.data() + size * 2 * kExperts * kHidden * kInner;
    DeviceBuffer<float> scales(std::size_t{kExperts} * 3 * (kHidden / 128) * (kInner / 128));
    refill(scales.data(), scales.bytes(), Fill::kScales);
    weights.gate_up_scales = scales.data();
    weights.down_scales = scales.data() + std::size_t{kExperts} * 2 * (kHidden / 128) * (kInner / 128);
    std::mt19937 engine(7);
    for (const std::int64_t m : {1, 4, 8, 32, 64, 256, 1024, 4096}) {
      std::vector<std::int32_t> ids, all(kExperts);
      std::vector<bool> touched(kExperts);
      std::iota(all.begin(), all.end(), 0);
      for (std::int64_t row = 0; row < m; ++row) {
        std::shuffle(all.begin(), all.end(), engine);
        for (int i = 0; i < kPerToken; ++i) touched[static_cast<std::size_t>(all[static_cast<std::size_t>(i)])] = true;
        ids.insert(ids.end(), all.begin(), all.begin() + kPerToken);
      }
      ids_.upload(ids.data(), ids.size());
      const DeviceBuffer<std::byte> workspace(experts_workspace_bytes(weights, m, kPerToken));
      ExpertsDeviceParams params;
      params.experts = weights;
      params.x = x_.data();
      params.x_type = ActivationType::kBF16;
      params.ids = ids_.data();
      params.weights = factors_.data();
      params.per_token = kPerToken;
      params.rows = m;
      params.out = reinterpret_cast<float*>(y_.data());
      params.workspace = workspace.data();
      const double us = time([&](Stream stream) { launch_experts(params, stream); });
      const auto experts_read = static_cast<double>(std::count(touched.begin(), touched.end(), true));
      const double matrices = 3.0 * kHidden * kInner;
      Row row = {name, m, experts_read * matrices * static_cast<double>(size) + static_cast<double>(m) * kHidden * 10,
                 2.0 * matrices * static_cast<double>(m) * kPerToken};
      row.peak = fp8 ? kFp8PerUs : kBf16PerUs;
      print(row, us);
    }
  }

  void fp8() {
    struct Shape {
      const char* name;
      std::int64_t n, k;
    };
    DeviceBuffer<float> scales(1 << 20);
    refill(scales.data(), scales.bytes(), Fill::kScales);
    for (const Shape& s : {Shape{"FP8 18432 x 7168", 18'432, 7168}, Shape{"FP8 7168 x 18432", 7168, 18'432}})
      for (const std::int64_t m : {1, 64, 4096}) {
        const DeviceBuffer<std::byte> workspace(fp8_matmul_workspace_bytes(m, s.k));
        Fp8MatmulParams params;
        params.x = x_.data();
        params.x_type = ActivationType::kBF16;
        params.weight = weights_.data();
        params.weight_scales = scales.data();
        params.y = y_.data();
        params.y_type = ActivationType::kBF16;
        params.m = m;
        params.n = s.n;
        params.k = s.k;
        params.workspace = workspace.data();
        const auto md = static_cast<double>(m), nd = static_cast<double>(s.n), kd = static_cast<double>(s.k);
        Row row = {s.name, m, md * kd * 2 + nd * kd + md * nd * 2, 2 * md * nd * kd, kFp8PerUs};
        row.peer = peer(m, s.n, s.k, scales);
        print(row, time([&](Stream stream) { launch_fp8_matmul(params, stream); }));
      }
  }

  // 0: cuBLASLt has no such product here.
  double peer(std::int64_t m, std::int64_t n, std::int64_t k, const DeviceBuffer<float>& scales) {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    std::array<cublasLtMatrixLayout_t, 3> layouts = {};
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      return cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value);
    };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const float* const scale = scales.data();
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
    cublasLtMatrixLayoutCreate(&layouts[0], CUDA_R_8F_E4M3, static_cast<std::uint64_t>(k),
                               static_cast<std::uint64_t>(n), k);
    cublasLtMatrixLayoutCreate(&layouts[1], CUDA_R_8F_E4M3, static_cast<std::uint64_t>(k),
                               static_cast<std::uint64_t>(m), k);
    cublasLtMatrixLayoutCreate(&layouts[2], CUDA_R_16BF, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(m),
                               n);
    cublasLtMatmulPreferenceCreate(&preference);
    const DeviceBuffer<std::byte> workspace(std::size_t{64} << 20);
    const std::uint64_t most = workspace.bytes();
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(handle, description, layouts[0], layouts[1], layouts[2],
                                                       layouts[2], preference, 1, &found, &count);
    double us = 0;
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) {
      const float one = 1.0F;
      const float zero = 0.0F;
      us = time([&](Stream stream) {
        cublasLtMatmul(handle, description, &one, weights_.data(), layouts[0], x_.data(), layouts[1], &zero, y_.data(),
                       layouts[2], y_.data(), layouts[2], &found.algo, workspace.data(), workspace.bytes(), stream);
      });
    }
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : layouts) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
    return us;
  }

  OwnedStream stream_;
  MatmulLibrary library_;
  DeviceBuffer<std::byte> dirty_{std::size_t{256} << 20};
  DeviceBuffer<std::byte> weights_{kWeightBytes};
  DeviceBuffer<std::uint16_t> x_{kMostRows * 32'768}, same_{256 * 16'384};
  DeviceBuffer<std::byte> y_{std::size_t{512} << 20};
  DeviceBuffer<std::int32_t> ids_{kMostRows * 8};
  DeviceBuffer<float> factors_{kMostRows * 8};
};

}  // namespace
}  // namespace hotset::kernels::cuda

int main() {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::puts("no GPU here");
    return 1;
  }
  hotset::kernels::cuda::Bench().run();
  return 0;
}
