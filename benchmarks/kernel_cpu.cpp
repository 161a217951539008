// Speed of the CPU kernels beside the limits of this machine, measured in the same run: GB/s of weights against a plain
// read of memory, GMAC/s against a loop of nothing but multiply-adds. Shapes are those of the default model
// (SmolLM2-135M: hidden 576, MLP 1536, 9 heads on 3 KV heads of 64, 30 layers, vocabulary 49152, Q4_1).
//
//   kernel_cpu [--threads N] [--clock wall|cpu] [--isa scalar|avx2|avx512|vnni]
//              [--type q4_1|q4_0|q8_0|q4_k|q6_k|f32|f16|bf16] [--part all|matmul|attention|rows|model]
//
// `rows`: attention over every row format, with the shapes of DeepSeek-V3 (latent rows of 512 + 64) and Llama 8B.
//
// Each figure is the best of several runs. The machine should be otherwise idle; where it is not, `--threads 1 --clock
// cpu` leaves out the time in which other processes had the core.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {
namespace {

constexpr std::int64_t kHidden = 576;
constexpr std::int64_t kMlp = 1536;
constexpr std::int64_t kVocabulary = 49152;
constexpr std::int64_t kLayers = 30;
constexpr std::int32_t kHeads = 9;
constexpr std::int32_t kKvHeads = 3;
constexpr std::int32_t kHeadDim = 64;
constexpr std::int64_t kKvWidth = kKvHeads * kHeadDim;

bool g_cpu_clock = false;

double now_seconds() {
  if (g_cpu_clock) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(const std::function<void()>& work) {
  const double begin = now_seconds();
  work();
  return now_seconds() - begin;
}

// Best time of one call of work(), for about a third of a second.
double best_seconds(const std::function<void()>& work) {
  double best = seconds_of(work);
  for (double spent = 0; spent < 0.2;) {
    const double now = seconds_of(work);
    best = std::min(best, now);
    spent += now + 1e-6;
  }
  return best;
}

// ---- Limits ----

double read_gb_per_s(ThreadPool& pool) {
  constexpr std::int64_t kWords = 8 << 20;  // 64 MiB: about the model, so that a large last-level cache counts for both
  static const std::vector<std::uint64_t> kData(kWords, 1);
  std::vector<std::uint64_t> sums(256);
  const double seconds = best_seconds([&] {
    pool.run(256, [&](std::int64_t task, int) {
      const std::uint64_t* from = kData.data() + task * (kWords / 256);
      std::uint64_t lanes[8] = {};
      for (std::int64_t i = 0; i < kWords / 256; i += 8) {
        __builtin_prefetch(from + i + 512, 0, 2);
        for (int lane = 0; lane < 8; ++lane) lanes[lane] += from[i + lane];
      }
      for (const std::uint64_t lane : lanes) sums[static_cast<std::size_t>(task)] += lane;
    });
  });
  return kWords * 8 / seconds / 1e9;
}

constexpr std::int64_t kPeakLoops = 10'000;

#if defined(__x86_64__)
// Ten independent chains keep both units busy. The results go through memory, so that the loops stay.
__attribute__((target("avx512f,avx512vnni"))) void vnni_loop(std::int32_t* out) {
  __m512i sums[10] = {};
  const __m512i codes = _mm512_set1_epi32(out[0]);
  for (std::int64_t i = 0; i < kPeakLoops; ++i) {
#pragma GCC unroll 10
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, codes, codes);
      asm("" : "+v"(sum));
    }
  }
  for (const __m512i& sum : sums) out[0] += _mm512_cvtsi512_si32(sum);
}
__attribute__((target("avx512f"))) void fma512_loop(std::int32_t* out) {
  __m512 sums[10] = {};
  const __m512 x = _mm512_set1_ps(static_cast<float>(out[0]));
  for (std::int64_t i = 0; i < kPeakLoops; ++i) {
#pragma GCC unroll 10
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(x, x, sum);
      asm("" : "+v"(sum));
    }
  }
  for (const __m512& sum : sums) out[0] += static_cast<std::int32_t>(_mm512_cvtss_f32(sum));
}
__attribute__((target("avx2,fma"))) void fma256_loop(std::int32_t* out) {
  __m256 sums[10] = {};
  const __m256 x = _mm256_set1_ps(static_cast<float>(out[0]));
  for (std::int64_t i = 0; i < kPeakLoops; ++i) {
#pragma GCC unroll 10
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(x, x, sum);
      asm("" : "+v"(sum));
    }
  }
  for (const __m256& sum : sums) out[0] += static_cast<std::int32_t>(_mm256_cvtss_f32(sum));
}
#endif

double peak_gmac(ThreadPool& pool, void (*loop)(std::int32_t*), int lanes) {
  const std::int64_t tasks = pool.threads() * 4;
  const double seconds = best_seconds([&] {
    pool.run(tasks, [&](std::int64_t, int) {
      volatile std::int32_t zero = 0;
      std::int32_t out = zero;
      loop(&out);
      zero = out;
    });
  });
  return static_cast<double>(tasks * kPeakLoops * 10 * lanes) / seconds / 1e9;
}

double empty_region_us(ThreadPool& pool) {
  constexpr int kRegions = 1000;
  return best_seconds([&] {
           for (int i = 0; i < kRegions; ++i) pool.run(pool.threads(), [](std::int64_t, int) {});
         }) /
         kRegions * 1e6;
}

struct Limits {
  double read_gb = 0;
  double fma_gmac = 0;
  double integer_gmac = 0;  // 16-bit activations cost two byte products each
};

Limits measure_limits(int threads, CpuIsa isa) {
  ThreadPool pool(threads);
  Limits limits;
  limits.read_gb = read_gb_per_s(pool);
#if defined(__x86_64__)
  if (isa >= CpuIsa::kAvx512) {
    limits.fma_gmac = peak_gmac(pool, fma512_loop, 16);
  } else if (isa == CpuIsa::kAvx2) {
    limits.fma_gmac = peak_gmac(pool, fma256_loop, 8);
  }
  if (isa == CpuIsa::kAvx512Vnni) limits.integer_gmac = peak_gmac(pool, vnni_loop, 64) / 2;
#else
  (void)isa;
#endif
  std::printf(
      "\n%d thread%s: memory read %.1f GB/s, FMA %.0f GMAC/s, 8 x 16 bit by VNNI %.0f GMAC/s, empty region %.2f us\n",
      threads, threads == 1 ? "" : "s", limits.read_gb, limits.fma_gmac, limits.integer_gmac, empty_region_us(pool));
  return limits;
}

// ---- Weights ----

const std::vector<std::pair<std::string_view, WeightType>> kTypes = {
    {"q4_1", WeightType::kQ4_1}, {"q4_0", WeightType::kQ4_0}, {"q8_0", WeightType::kQ8_0}, {"q4_k", WeightType::kQ4_K},
    {"q6_k", WeightType::kQ6_K}, {"f32", WeightType::kF32},   {"f16", WeightType::kF16},   {"bf16", WeightType::kBF16}};

std::unique_ptr<PackedMatrix> random_weight(Backend& backend, WeightType type, std::int64_t rows, std::int64_t cols) {
  const BlockFormat format = block_format(type);
  const auto bytes = static_cast<std::size_t>(ceil_div(cols, format.elements) * format.bytes * rows);
  std::vector<std::byte> data(bytes);
  // Bit 6 of every byte clear: no f16 anywhere in a block becomes infinite or NaN. Floats get an exponent near 1:
  // random ones would be subnormal here and there, which costs a hundred cycles each.
  std::uint32_t state = 1;
  for (std::byte& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24 & 0xbfU);
  }
  if (format.elements == 1) {
    for (std::size_t i = 1; i <= data.size() / static_cast<std::size_t>(format.bytes); ++i) {
      data[i * static_cast<std::size_t>(format.bytes) - 1] = std::byte{0x3c};
    }
  }
  return backend.pack({type, rows, ceil_div(cols, format.elements) * format.elements, data});
}

std::vector<float> random_floats(std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& x : out) x = normal(random);
  return out;
}

void matmul_table(Backend& backend, WeightType type, const Limits& limits) {
  std::printf("%22s %5s %10s %8s %8s %9s %8s\n", "matmul K x N", "M", "us", "GB/s", "% read", "GMAC/s", "% peak");
  const bool quantised = block_format(type).elements > 1;
  const double peak = quantised ? limits.integer_gmac : limits.fma_gmac;
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {kHidden, kHidden}, {kHidden, kKvWidth}, {kHidden, kMlp}, {kMlp, kHidden}, {kHidden, kVocabulary}};
  for (const auto& [cols, rows] : shapes) {
    // Enough copies that a pass over them does not stay in the caches nearby.
    std::vector<std::unique_ptr<PackedMatrix>> weights;
    std::int64_t bytes = 0;
    while (bytes < (32 << 20)) {
      weights.push_back(random_weight(backend, type, rows, cols));
      bytes += weights.back()->bytes();
    }
    for (const std::int64_t m : {1, 4, 64, 256}) {
      if (rows == kVocabulary && m > 4) continue;
      const std::vector<float> x = random_floats(m * weights[0]->cols());
      std::vector<float> y(static_cast<std::size_t>(m * rows));
      const std::size_t used = m >= 64 ? std::min<std::size_t>(weights.size(), 4) : weights.size();
      const double seconds = best_seconds([&] {
                               for (std::size_t i = 0; i < used; ++i) {
                                 MatmulParams params;
                                 params.x = x.data();
                                 params.weight = weights[i].get();
                                 params.y = y.data();
                                 params.m = m;
                                 backend.matmul(params);
                               }
                             }) /
                             static_cast<double>(used);
      const double gb = static_cast<double>(weights[0]->bytes()) / seconds / 1e9;
      const double gmac = static_cast<double>(m * rows * weights[0]->cols()) / seconds / 1e9;
      std::printf("%13lld x %6lld %5lld %10.1f %8.1f %7.0f%% %9.1f %7.0f%%\n",
                  static_cast<long long>(weights[0]->cols()), static_cast<long long>(rows), static_cast<long long>(m),
                  seconds * 1e6, gb, 100 * gb / limits.read_gb, gmac, peak > 0 ? 100 * gmac / peak : 0.0);
    }
  }
}

// ---- Attention ----

// K and V rows of one layer, and what both kinds of attention need around them.
struct AttentionBed {
  KvGeometry geometry{1, kKvHeads, kHeadDim, kHeadDim, KvGeometry::Layout::kGrouped, KvDType::kF32};
  std::vector<std::byte> pool;
  std::vector<std::int64_t> slots;
  std::vector<const std::byte*> tiles;

  AttentionBed(Backend& backend, std::int64_t length) : pool(static_cast<std::size_t>(length * geometry.row_bytes())) {
    const std::vector<float> k = random_floats(length * kKvWidth);
    std::vector<std::byte*> targets;
    for (std::int64_t i = 0; i < length; ++i) {
      targets.push_back(pool.data() + i * geometry.row_bytes());
      slots.push_back(i);
      if (i % kPageTokens == 0) tiles.push_back(targets.back());
    }
    backend.store_rows({geometry, k.data(), kKvWidth, k.data(), kKvWidth, targets.data(), length});
  }
};

struct PrefillBuffers {
  std::vector<float> acc, max, sum;
  explicit PrefillBuffers(std::int64_t rows)
      : acc(static_cast<std::size_t>(rows * kHidden)), max(static_cast<std::size_t>(rows * kHeads)), sum(max) {}
};

void run_prefill(Backend& backend, const AttentionBed& bed, const float* q, float* out, std::int64_t rows,
                 std::int64_t first_position, PrefillBuffers& buffers) {
  PrefillAttentionParams params;
  params.geometry = bed.geometry;
  params.q = q;
  params.q_stride = kHidden;
  params.rows = rows;
  params.first_position = first_position;
  params.tiles = bed.tiles.data();
  params.tile_count = ceil_div(first_position + rows, kPageTokens);
  params.state = {buffers.acc.data(), buffers.max.data(), buffers.sum.data()};
  params.begin = true;
  params.finish = true;
  params.out = out;
  params.heads = kHeads;
  params.scale = 0.125F;
  backend.prefill_attention(params);
}

void run_decode(Backend& backend, const AttentionBed& bed, const float* q, float* out) {
  const std::int64_t offsets[2] = {0, static_cast<std::int64_t>(bed.slots.size())};
  SlotAttentionParams params;
  params.geometry = bed.geometry;
  params.q = q;
  params.q_stride = kHidden;
  params.pool = bed.pool.data();
  params.slots = bed.slots.data();
  params.slot_offsets = offsets;
  params.out = out;
  params.out_stride = kHidden;
  params.rows = 1;
  params.heads = kHeads;
  params.scale = 0.125F;
  backend.slot_attention(params);
}

void attention_table(Backend& backend, const Limits& limits) {
  std::printf("%22s %5s %10s %8s %8s %9s %8s\n", "attention, one layer", "rows", "us", "GB/s", "% read", "GMAC/s",
              "% peak");
  const std::vector<float> q = random_floats(256 * kHidden);
  std::vector<float> out(q.size());
  const auto print = [&](const char* name, std::int64_t rows, double seconds, std::int64_t bytes, double macs) {
    std::printf("%22s %5lld %10.1f %8.1f %7.0f%% %9.1f %7.0f%%\n", name, static_cast<long long>(rows), seconds * 1e6,
                static_cast<double>(bytes) / seconds / 1e9,
                100 * static_cast<double>(bytes) / seconds / 1e9 / limits.read_gb, macs / seconds / 1e9,
                limits.fma_gmac > 0 ? 100 * macs / seconds / 1e9 / limits.fma_gmac : 0.0);
  };
  {
    const AttentionBed bed(backend, 512);
    PrefillBuffers buffers(256);
    const double seconds = best_seconds([&] { run_prefill(backend, bed, q.data(), out.data(), 256, 256, buffers); });
    print("prefill 256 ... 511", 256, seconds, static_cast<std::int64_t>(bed.pool.size()), 256 * 384.5 * kHidden * 2);
  }
  for (const std::int64_t length : {512, 2048}) {
    const AttentionBed bed(backend, length);
    const double seconds = best_seconds([&] { run_decode(backend, bed, q.data(), out.data()); });
    print(length == 512 ? "decode over 512" : "decode over 2048", 1, seconds,
          static_cast<std::int64_t>(bed.pool.size()), static_cast<double>(length * kHidden * 2));
  }
}

// ---- Row formats ----

struct RowShape {
  const char* name;
  KvGeometry geometry;
  std::int32_t heads;
};

std::vector<RowShape> row_shapes() {
  using Layout = KvGeometry::Layout;
  std::vector<RowShape> out;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    out.push_back({"MLA 576/512, 16 heads", {1, 1, 576, 512, Layout::kLatent, dtype}, 16});
    out.push_back({"MLA 576/512, 128 heads", {1, 1, 576, 512, Layout::kLatent, dtype}, 128});
    out.push_back({"GQA 128, 32 on 8 heads", {1, 8, 128, 128, Layout::kGrouped, dtype}, 32});
  }
  return out;
}

const char* name_of(KvDType dtype) { return dtype == KvDType::kF32 ? "f32" : dtype == KvDType::kBF16 ? "bf16" : "fp8"; }

// One query over 2048 of 32768 rows in no order, as a selection leaves them.
void rows_table(Backend& backend, const Limits& limits) {
  constexpr std::int64_t kPoolRows = 32768;
  constexpr std::int64_t kSelected = 2048;
  constexpr std::int64_t kStored = 256;
  std::printf("%24s %5s %6s %9s %8s %8s %9s %8s %10s %10s\n", "slot attention", "rows", "bytes", "us", "ns/row", "GB/s",
              "GMAC/s", "% peak", "store ns", "load ns");
  for (const RowShape& shape : row_shapes()) {
    const KvGeometry& geometry = shape.geometry;
    const std::int64_t row_bytes = geometry.row_bytes();
    std::vector<std::byte> pool(static_cast<std::size_t>(kPoolRows * row_bytes));
    const std::vector<float> k = random_floats(kStored * geometry.key_elements());
    const std::vector<float> v = random_floats(kStored * geometry.value_elements());
    std::vector<std::byte*> targets;
    for (std::int64_t i = 0; i < kStored; ++i) targets.push_back(pool.data() + i * row_bytes);
    const double store = best_seconds([&] {
      backend.store_rows(
          {geometry, k.data(), geometry.key_elements(), v.data(), geometry.value_elements(), targets.data(), kStored});
    });
    for (std::int64_t i = kStored; i < kPoolRows; ++i) {
      std::memcpy(pool.data() + i * row_bytes, pool.data() + i % kStored * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
    std::vector<float> keys(k.size());
    const double load = best_seconds([&] { backend.load_keys({geometry, pool.data(), kStored, keys.data()}); });

    std::mt19937 random(3);
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < kSelected; ++i) slots.push_back(static_cast<std::int64_t>(random()) % kPoolRows);
    const std::int64_t offsets[2] = {0, kSelected};
    const std::vector<float> q = random_floats(std::int64_t{shape.heads} * geometry.key_dim);
    std::vector<float> out(static_cast<std::size_t>(std::int64_t{shape.heads} * geometry.value_dim));
    SlotAttentionParams params;
    params.geometry = geometry;
    params.q = q.data();
    params.q_stride = static_cast<std::int64_t>(q.size());
    params.pool = pool.data();
    params.slots = slots.data();
    params.slot_offsets = offsets;
    params.out = out.data();
    params.out_stride = static_cast<std::int64_t>(out.size());
    params.rows = 1;
    params.heads = shape.heads;
    params.scale = 0.1F;
    const double seconds = best_seconds([&] { backend.slot_attention(params); });
    const double gmac =
        static_cast<double>(kSelected * shape.heads * (geometry.key_dim + geometry.value_dim)) / seconds / 1e9;
    std::printf("%24s %5s %6lld %9.1f %8.1f %8.2f %9.1f %7.0f%% %10.1f %10.1f\n", shape.name, name_of(geometry.dtype),
                static_cast<long long>(row_bytes), seconds * 1e6, seconds * 1e9 / kSelected,
                static_cast<double>(kSelected * row_bytes) / seconds / 1e9, gmac,
                limits.fma_gmac > 0 ? 100 * gmac / limits.fma_gmac : 0.0, store * 1e9 / kStored, load * 1e9 / kStored);
  }
}

// ---- The whole model's launches, without the model around them ----

struct Layer {
  std::unique_ptr<PackedMatrix> q, k, v, o, gate, up, down;
};

class LaunchModel {
 public:
  LaunchModel(Backend& backend, WeightType type) : backend_(backend), bed_(backend, 1024), buffers_(256) {
    for (std::int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back({weight(type, kHidden, kHidden), weight(type, kKvWidth, kHidden),
                         weight(type, kKvWidth, kHidden), weight(type, kHidden, kHidden), weight(type, kMlp, kHidden),
                         weight(type, kMlp, kHidden), weight(type, kHidden, kMlp)});
    }
    head_ = weight(type, kVocabulary, kHidden);
    for (int c = 0; c < kHeadDim / 2; ++c) inv_freq_.push_back(1.0F / static_cast<float>(1 + c));
  }

  // `rows` tokens from `position` on; decode attends through slots, a prompt through tiles.
  void step(std::int64_t rows, std::int64_t position, bool decode, bool logits) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), 7);
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < rows; ++i) positions.push_back(position + i);
    backend_.embed({head_.get(), tokens.data(), rows, x_.data()});
    for (const Layer& layer : layers_) {
      backend_.rms_norm({x_.data(), norm_.data(), normed_.data(), rows, kHidden, 0, 1e-5F});
      matmul(*layer.q, normed_, q_, rows);
      matmul(*layer.k, normed_, k_, rows);
      matmul(*layer.v, normed_, v_, rows);
      backend_.rope({q_.data(), kHidden, positions.data(), inv_freq_.data(), rows, kHeads, kHeadDim, kHeadDim, 1.0F});
      backend_.rope(
          {k_.data(), kKvWidth, positions.data(), inv_freq_.data(), rows, kKvHeads, kHeadDim, kHeadDim, 1.0F});
      store(rows, position);
      if (decode) {
        run_decode(backend_, bed_, q_.data(), attended_.data());
      } else {
        run_prefill(backend_, bed_, q_.data(), attended_.data(), rows, position, buffers_);
      }
      matmul(*layer.o, attended_, x_, rows, true);
      backend_.rms_norm({x_.data(), norm_.data(), normed_.data(), rows, kHidden, 0, 1e-5F});
      matmul(*layer.gate, normed_, gate_, rows);
      matmul(*layer.up, normed_, up_, rows);
      backend_.silu_gate({gate_.data(), up_.data(), gate_.data(), rows, kMlp});
      matmul(*layer.down, gate_, x_, rows, true);
    }
    if (logits) matmul(*head_, x_, logits_, 1);
  }

  void use_context(std::int64_t length) { bed_.slots.resize(static_cast<std::size_t>(length)); }

 private:
  std::unique_ptr<PackedMatrix> weight(WeightType type, std::int64_t rows, std::int64_t cols) {
    return random_weight(backend_, type, rows, cols);
  }
  void matmul(const PackedMatrix& weight, const std::vector<float>& x, std::vector<float>& y, std::int64_t m,
              bool accumulate = false) {
    backend_.matmul({x.data(), 0, &weight, nullptr, y.data(), 0, m, accumulate});
  }
  void store(std::int64_t rows, std::int64_t position) {
    std::vector<std::byte*> targets;
    for (std::int64_t i = 0; i < rows; ++i)
      targets.push_back(bed_.pool.data() + (position + i) * bed_.geometry.row_bytes());
    backend_.store_rows({bed_.geometry, k_.data(), kKvWidth, v_.data(), kKvWidth, targets.data(), rows});
  }

  Backend& backend_;
  std::vector<Layer> layers_;
  std::unique_ptr<PackedMatrix> head_;
  AttentionBed bed_;
  PrefillBuffers buffers_;
  std::vector<float> inv_freq_;
  std::vector<float> norm_ = random_floats(kHidden);
  std::vector<float> x_ = random_floats(256 * kHidden), normed_ = x_, q_ = x_, attended_ = x_;
  std::vector<float> k_ = random_floats(256 * kKvWidth), v_ = k_;
  std::vector<float> gate_ = random_floats(256 * kMlp), up_ = gate_;
  std::vector<float> logits_ = random_floats(kVocabulary);
};

void model_table(Backend& backend, WeightType type) {
  LaunchModel model(backend, type);
  const double prompt = best_seconds([&] {
    model.step(256, 0, false, false);
    model.step(256, 256, false, true);
  });
  std::printf("all launches of the model: prompt of 512 %.0f tokens/s", 512 / prompt);
  for (const std::int64_t length : {64, 512}) {
    model.use_context(length);
    const double decode = best_seconds([&] { model.step(1, length - 1, true, true); });
    std::printf(", decode at %lld %.0f tokens/s", static_cast<long long>(length), 1 / decode);
    model.use_context(512);
  }
  std::printf("\n");
}

int main_of(const std::vector<std::string_view>& arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<int> threads = {1, 2};
  CpuIsa isa = detect_cpu_isa();
  WeightType type = WeightType::kQ4_1;
  std::string part = "all";
  for (std::size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string value(arguments[i + 1]);
    if (arguments[i] == "--threads") threads = {std::max(1, std::atoi(value.c_str()))};
    if (arguments[i] == "--part") part = value;
    if (arguments[i] == "--clock") g_cpu_clock = value == "cpu";
    if (arguments[i] == "--isa") {
      const CpuIsa wanted = value == "scalar"   ? CpuIsa::kScalar
                            : value == "avx2"   ? CpuIsa::kAvx2
                            : value == "avx512" ? CpuIsa::kAvx512
                                                : CpuIsa::kAvx512Vnni;
      isa = std::min(isa, wanted);
    }
    for (const auto& [name, candidate] : kTypes) {
      if (arguments[i] == "--type" && value == name) type = candidate;
    }
  }
  for (const int count : threads) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(count, isa);
    const Limits limits = measure_limits(count, isa);
    std::printf("%s\n", backend->description().c_str());
    const auto wanted = [&](const char* name) { return part == "all" || part == name; };
    if (wanted("matmul")) matmul_table(*backend, type, limits);
    if (wanted("attention")) attention_table(*backend, limits);
    if (wanted("rows")) rows_table(*backend, limits);
    if (wanted("model") && block_format(type).elements != 256) model_table(*backend, type);
  }
  return 0;
}

}  // namespace
}  // namespace hotset::kernels

int main(int argc, char** argv) { return hotset::kernels::main_of({argv + 1, argv + argc}); }
