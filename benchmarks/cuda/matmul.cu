// Products: those of decode steps of Llama-3.1-8B and DeepSeek-V3.2 by the kernel for few rows and by cuBLASLt; Llama's
// of more rows, products side by side as latent attention has them, FP8 with block scales, mixture of experts as
// DeepSeek-V3 has it, and its router.
//
//   matmul [few|fp8]
//
// few: the first table alone; fp8: what has FP8 weights alone. In tables of few rows times are those of one product in
// a graph of many, each with its own weights, 1 GB together.
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
#include "kernels/cuda/matmul/few_rows.h"
#include "kernels/cuda/matmul/few_rows_fp8.h"
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

  void run_fp8() {
    refill(weights_.data(), weights_.bytes(), Fill::kE4m3);
    few_rows_fp8();
    print_header();
    experts(ExpertFormat::kFp8Block, "experts FP8, 8 of 256");
    fp8();
  }

  void run(bool few_only) {
    refill(weights_.data(), weights_.bytes(), Fill::kBf16);
    few_rows();
    if (few_only) return;
    print_header();
    dense();
    side_by_side();
    router();
    experts(ExpertFormat::kBF16, "experts bf16, 8 of 256");
    refill(weights_.data(), weights_.bytes(), Fill::kE4m3);
    experts(ExpertFormat::kFp8Block, "experts FP8, 8 of 256");
    few_rows_fp8();
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
  static void print_header() {
    std::printf("%-30s %6s %10s %10s %6s %8s %8s %8s %7s %8s\n", "product", "m", "us", "floor us", "ratio", "TFLOP/s",
                "GB/s", "peer us", "places", "as m = 1");
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

  // y += in float32, or y in float32; gated: bf16.
  struct FewShape {
    const char* name;
    std::int64_t n, k;
    bool accumulate = false;
    bool gated = false;
    std::int64_t heads = 1;
  };

  double chain_time(const FewShape& s, std::int64_t m, bool library, int tiles) {
    MatmulShape shape;
    shape.m = m;
    shape.n = s.n;
    shape.k = s.k;
    shape.batch = s.heads;
    shape.x_step = s.heads > 1 ? s.k : 0;
    shape.y_step = s.heads > 1 ? s.n : 0;
    shape.weight_step = s.heads > 1 ? s.n * s.k : 0;
    shape.x_stride = s.heads * s.k;
    shape.y_stride = s.heads * s.n;
    shape.type = ActivationType::kBF16;
    shape.y_type = s.gated ? ActivationType::kBF16 : ActivationType::kF32;
    shape.accumulate = s.accumulate;
    shape.gated = s.gated && !library;
    shape.library = library;
    if (s.gated && library) shape.n = shape.y_stride = 2 * s.n;
    Matmul matmul(library_, shape);
    const DeviceBuffer<std::byte> workspace(matmul.workspace_bytes() + 256);
    const std::size_t step = static_cast<std::size_t>(2 * s.n * s.k * s.heads) * (s.gated ? 2 : 1);
    const auto count = static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 30) / step, 2, 128));
    const auto chain = [&](Stream stream) {
      for (int i = 0; i < count; ++i) {
        const MatmulOperands operands = {x_.data(), weights_.data() + static_cast<std::size_t>(i) * step, nullptr,
                                         y_.data(), workspace.data()};
        if (tiles > 0) {
          launch_few_rows(shape, operands, stream, tiles);
        } else {
          matmul.launch(operands, stream);
        }
      }
    };
    return graph_time_us(stream_.get(), kRepeats, chain, [](cudaStream_t) {}) / count;
  }

  void few_rows() {
    std::printf("%-32s %6s %10s %10s %6s %10s %6s | tiles 1, 2: us\n", "few rows", "m", "floor us", "us", "ratio",
                "cuBLASLt", "ratio");
    for (const FewShape& s : {FewShape{"Llama q, k, v 6144 x 4096", 6144, 4096},
                              FewShape{"output 4096 x 4096 +=", 4096, 4096, true},
                              FewShape{"gate, up 28672 x 4096", 28'672, 4096},
                              FewShape{"gated 14336 x 4096", 14'336, 4096, false, true},
                              FewShape{"down 4096 x 14336 +=", 4096, 14'336, true},
                              FewShape{"vocabulary 128256 x 4096", 128'256, 4096},
                              FewShape{"DeepSeek q_a 1536 x 7168", 1536, 7168},
                              FewShape{"q_b 24576 x 1536", 24'576, 1536},
                              FewShape{"kv_a 576 x 7168", 576, 7168},
                              FewShape{"output 7168 x 16384 +=", 7168, 16'384, true},
                              FewShape{"gated 18432 x 7168", 18'432, 7168, false, true},
                              FewShape{"down 7168 x 18432 +=", 7168, 18'432, true},
                              FewShape{"gated 2048 x 7168", 2048, 7168, false, true},
                              FewShape{"down 7168 x 2048 +=", 7168, 2048, true},
                              FewShape{"router 256 x 7168", 256, 7168},
                              FewShape{"index q 8192 x 1536", 8192, 1536},
                              FewShape{"index k 128 x 7168", 128, 7168},
                              FewShape{"128 heads, 512 x 128", 512, 128, false, false, 128},
                              FewShape{"128 heads, 128 x 512", 128, 512, false, false, 128},
                              FewShape{"vocabulary 129280 x 7168", 129'280, 7168}}) {
      for (const std::int64_t m : {1, 2, 4, 8, 16, 32}) {
        const double weights = 2.0 * static_cast<double>(s.n * s.k * s.heads) * (s.gated ? 2 : 1);
        const double rows = static_cast<double>(m * s.heads) *
                            (2.0 * static_cast<double>(s.k) + static_cast<double>(s.n) * (s.gated        ? 2
                                                                                          : s.accumulate ? 8
                                                                                                         : 4));
        const double floor = (weights + rows) / kBytesPerUs;
        const double library = chain_time(s, m, true, 0);
        const double own = m > kMostFewRows ? 0 : chain_time(s, m, false, 0);
        std::printf("%-32s %6lld %10.2f %10.2f %6.2f %10.2f %6.2f |", s.name, static_cast<long long>(m), floor, own,
                    own / floor, library, library / floor);
        for (int tiles = 1; tiles <= 2 && own > 0; ++tiles) std::printf(" %8.2f", chain_time(s, m, false, tiles));
        std::puts("");
        std::fflush(stdout);
      }
    }
    std::puts("");
  }

  double fp8_chain_time(const FewShape& s, std::int64_t m, bool few, int tiles) {
    const DeviceBuffer<std::byte> workspace(fp8_matmul_workspace_bytes(m, s.k));
    const std::size_t step = static_cast<std::size_t>(s.n * s.k) * (s.gated ? 2 : 1);
    const auto count = static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 30) / step, 2, 128));
    const auto chain = [&](Stream stream) {
      for (int i = 0; i < count; ++i) {
        const std::byte* const weight = weights_.data() + static_cast<std::size_t>(i) * step;
        if (few) {
          launch_few_rows_fp8({.x = x_.data(),
                               .weight = weight,
                               .scales = scales_.data(),
                               .y = y_.data(),
                               .y_type = s.gated ? ActivationType::kBF16 : ActivationType::kF32,
                               .accumulate = s.accumulate,
                               .gated = s.gated,
                               .m = m,
                               .n = s.n,
                               .k = s.k},
                              stream, tiles);
        } else {
          launch_fp8_matmul({.x = x_.data(),
                             .x_type = ActivationType::kBF16,
                             .weight = weight,
                             .weight_scales = scales_.data(),
                             .y = y_.data(),
                             .accumulate = s.accumulate,
                             .m = m,
                             .n = s.gated ? 2 * s.n : s.n,
                             .k = s.k,
                             .workspace = workspace.data()},
                            stream);
        }
      }
    };
    return graph_time_us(stream_.get(), kRepeats, chain, [](cudaStream_t) {}) / count;
  }

  // "quantised": the products of more rows, which quantise x; of gated ones the sums alone.
  void few_rows_fp8() {
    refill(scales_.data(), scales_.bytes(), Fill::kScales);
    std::printf("%-32s %6s %10s %10s %6s %10s %6s | tiles 1, 2, 4: us\n", "few rows, FP8", "m", "floor us", "us",
                "ratio", "quantised", "ratio");
    for (const FewShape& s :
         {FewShape{"DeepSeek inputs 2240 x 7168", 2240, 7168}, FewShape{"q_a 1536 x 7168", 1536, 7168},
          FewShape{"q_b 24576 x 1536", 24'576, 1536}, FewShape{"kv_a 576 x 7168", 576, 7168},
          FewShape{"output 7168 x 16384 +=", 7168, 16'384, true},
          FewShape{"gated 18432 x 7168", 18'432, 7168, false, true},
          FewShape{"down 7168 x 18432 +=", 7168, 18'432, true}, FewShape{"gated 2048 x 7168", 2048, 7168, false, true},
          FewShape{"down 7168 x 2048 +=", 7168, 2048, true}, FewShape{"index q 8192 x 1536", 8192, 1536},
          FewShape{"index k 128 x 7168", 128, 7168}}) {
      for (const std::int64_t m : {1, 4, 8, 16, 32, 64}) {
        const auto md = static_cast<double>(m), nd = static_cast<double>(s.n), kd = static_cast<double>(s.k);
        const double bytes = nd * kd * (s.gated ? 2 : 1) + md * (2 * kd + nd * (s.gated ? 2 : s.accumulate ? 8 : 4));
        const double floor = bytes / kBytesPerUs;
        const bool few = m <= kMostFewRowsFp8;
        const double own = few ? fp8_chain_time(s, m, true, 0) : 0;
        const double quantised = fp8_chain_time(s, m, false, 0);
        std::printf("%-32s %6lld %10.2f %10.2f %6.2f %10.2f %6.2f |", s.name, static_cast<long long>(m), floor, own,
                    own / floor, quantised, quantised / floor);
        for (const int tiles : {1, 2, 4}) {
          if (few) std::printf(" %8.2f", fp8_chain_time(s, m, true, tiles));
        }
        std::puts("");
        std::fflush(stdout);
      }
    }
    std::puts("");
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
        shape.library = true;
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
  DeviceBuffer<float> scales_{1 << 20};
};

}  // namespace
}  // namespace hotset::kernels::cuda

int main(int argc, char** argv) {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::puts("no GPU here");
    return 1;
  }
  const char* const what = argc > 1 ? argv[1] : "";
  if (*what != '\0' && std::strcmp(what, "few") != 0 && std::strcmp(what, "fp8") != 0) {
    std::fprintf(stderr, "usage: matmul [few | fp8]\n");
    return 2;
  }
  hotset::kernels::cuda::Bench bench;
  if (std::strcmp(what, "fp8") == 0) {
    bench.run_fp8();
  } else {
    bench.run(std::strcmp(what, "few") == 0);
  }
  return 0;
}
