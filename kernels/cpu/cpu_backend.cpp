#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/concat.h"
#include "core/kv_format.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/cpu_experts.h"
#include "kernels/cpu/cpu_matmul.h"
#include "kernels/cpu/cpu_selection.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {
namespace {

constexpr std::int64_t kMinTaskElements = 8 << 10;  // element-wise work of a few microseconds; less stays on the caller
constexpr std::int64_t kMinTaskBytes = 256 << 10;   // copies

const IsaKernels& kernels_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar: return kScalarKernels;
#if defined(HOTSET_X86_KERNELS)
    case CpuIsa::kAvx2: return kAvx2Kernels;
    case CpuIsa::kAvx512: return kAvx512Kernels;
    case CpuIsa::kAvx512Vnni: return kAvx512VnniKernels;
#else
    default: break;
#endif
  }
  return kScalarKernels;
}

class HostMemory final : public Memory {
 public:
  explicit HostMemory(std::int64_t bytes) {
    std::memset(buffer_.reserve(std::max<std::int64_t>(bytes, 1)), 0, static_cast<std::size_t>(bytes));
  }
  void* data() const override { return const_cast<std::byte*>(buffer_.data()); }

 private:
  AlignedBuffer<std::byte> buffer_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, CpuIsa isa)
      : kernels_(kernels_of(isa)),
        pool_(threads),
        matmul_(kernels_, pool_),
        attention_(kernels_, pool_),
        selection_(kernels_, pool_),
        experts_(kernels_, pool_, matmul_) {}

  std::string description() const override {
    return concat("CPU, ", pool_.threads(), pool_.threads() == 1 ? " thread, " : " threads, ", kernels_.name);
  }

  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  void upload(const void* source, void* target, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  ElementType activation_type() const override { return ElementType::kF32; }

  std::unique_ptr<PackedMatrix> pack(const MatrixView& matrix) override {
    return std::make_unique<CpuPackedMatrix>(matrix, pool_);
  }

  std::unique_ptr<PackedExperts> make_experts(const ExpertsShape& shape) override {
    return std::make_unique<CpuPackedExperts>(shape, pool_);
  }

  void embed(const EmbedParams& params) override {
    const CpuPackedMatrix& table = own_matrix(params.table);
    for_rows(params.count, table.cols(), [&](std::int64_t row) {
      const std::int32_t token = params.tokens[row];
      HS_CHECK(token >= 0 && token < table.rows(), "token id outside the vocabulary");
      table.read_row(token, params.out + row * table.cols());
    });
  }

  void rms_norm(const RmsNormParams& params) override {
    const std::int64_t stride = params.stride == 0 ? params.width : params.stride;
    const std::int64_t out_stride = params.out_stride == 0 ? stride : params.out_stride;
    for_rows(params.rows, params.width, [&](std::int64_t row) {
      kernels_.rms_norm_row(params.in + row * stride, params.weight, params.out.f32() + row * out_stride, params.width,
                            params.epsilon);
    });
  }

  void layer_norm(const LayerNormParams& params) override {
    for_rows(params.rows, params.width, [&](std::int64_t row) {
      const std::int64_t at = row * params.width;
      kernels_.layer_norm_row(params.in + at, params.weight, params.bias, params.out + at, params.width,
                              params.epsilon);
    });
  }

  void rope(const RopeParams& params) override {
    HS_CHECK(params.rotary_dim % 2 == 0 && params.rotary_dim <= params.head_dim, "bad rotary dimension");
    if (params.rows <= 0) return;
    rope_table_.prepare(params);
    for_rows(params.rows, std::int64_t{params.heads} * params.head_dim, [&](std::int64_t row) {
      kernels_.rope_row(params.x + row * params.row_stride, rope_table_.cos(row), rope_table_.sin(row),
                        params.rotary_dim / 2, params.heads, params.head_dim);
    });
  }

  void matmul(const MatmulParams& params) override { matmul_.run(params, own_matrix(params.weight)); }

  void batched_matmul(const BatchedMatmulParams& params) override {
    for (std::int64_t i = 0; i < params.batch; ++i) {
      matmul({.x = params.x.f32() + i * params.x_distance,
              .x_stride = params.x_stride,
              .weight = params.weights[i],
              .y = params.y.f32() + i * params.y_distance,
              .y_stride = params.y_stride,
              .m = params.m});
    }
  }

  void copy_columns(const CopyColumnsParams& params) override {
    for_rows(params.rows, params.width, [&](std::int64_t row) {
      std::copy_n(params.source + row * params.source_stride, params.width, params.target + row * params.target_stride);
    });
  }

  void silu_gate(const SiluGateParams& params) override {
    for_rows(params.rows, params.width, [&](std::int64_t row) {
      const std::int64_t at = row * (params.stride == 0 ? params.width : params.stride);
      kernels_.silu_gate(params.gate + at, params.up + at, params.out.f32() + row * params.width, params.width);
    });
  }

  void store_rows(const StoreRowsParams& params) override {
    const KvGeometry& geometry = params.geometry;
    const bool latent = geometry.layout == KvGeometry::Layout::kLatent;
    const std::int64_t work = geometry.key_elements() + geometry.value_elements();
    // FP8 costs a division an element.
    for_rows(params.rows, geometry.dtype == KvDType::kFp8 ? 8 * work : work, [&](std::int64_t row) {
      const float* const value = latent ? nullptr : params.v + row * params.v_stride;
      encode_row(geometry, params.k + row * params.k_stride, value, params.rows_out[row]);
    });
  }

  void load_keys(const LoadKeysParams& params) override {
    const KvGeometry& geometry = params.geometry;
    for_rows(params.rows, geometry.key_elements(), [&](std::int64_t row) {
      const std::byte* const from = params.source + row * geometry.row_bytes();
      float* const out = params.out + row * geometry.key_elements();
      for (std::int64_t head = 0; head < geometry.kv_heads; ++head) {
        kernels_.load_key(kv_head_view(geometry, head), from, out + head * geometry.key_dim);
      }
    });
  }

  void copy(const CopyParams& params) override {
    for_chunks(params.count, std::max<std::int64_t>(kMinTaskBytes / std::max<std::int64_t>(params.bytes, 1), 1),
               [&](std::int64_t i) {
                 std::memcpy(params.targets[i], params.sources[i], static_cast<std::size_t>(params.bytes));
               });
  }

  void slot_attention(const SlotAttentionParams& params) override { attention_.slots(params); }
  void prefill_attention(const PrefillAttentionParams& params) override { attention_.prefill(params); }

  void route(const RouteParams& params) override { experts_.route(params); }
  void experts(const ExpertsParams& params) override { experts_.run(params); }
  void store_metadata(const StoreMetadataParams& params) override { selection_.store(params); }
  void index_scores(const IndexScoresParams& params) override { selection_.index_scores(params); }
  void low_rank_scores(const LowRankScoresParams& params) override { selection_.low_rank_scores(params); }
  void block_scores(const BlockScoresParams& params) override { selection_.block_scores(params); }

  void top_k(const TopKParams& params) override { selection_.top_k(params); }

 private:
  // body(i) for i in [0, count), at least `chunk` of them a task.
  template <class Body>
  void for_chunks(std::int64_t count, std::int64_t chunk, const Body& body) {
    if (count <= 0) return;
    const std::int64_t step = std::max(chunk, ceil_div(count, std::int64_t{pool_.threads()} * 4));
    pool_.run(ceil_div(count, step), [&](std::int64_t task, int) {
      for (std::int64_t i = task * step; i < std::min(count, (task + 1) * step); ++i) body(i);
    });
  }
  template <class Body>
  void for_rows(std::int64_t rows, std::int64_t width, const Body& body) {
    for_chunks(rows, std::max<std::int64_t>(kMinTaskElements / std::max<std::int64_t>(width, 1), 1), body);
  }

  const IsaKernels& kernels_;
  ThreadPool pool_;
  CpuMatmul matmul_;
  CpuAttention attention_;
  CpuSelection selection_;
  CpuExperts experts_;
  RopeTable rope_table_;
};

}  // namespace

CpuIsa detect_cpu_isa() {
#if defined(HOTSET_X86_KERNELS)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return CpuIsa::kScalar;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return CpuIsa::kAvx2;
  }
  return __builtin_cpu_supports("avx512vnni") ? CpuIsa::kAvx512Vnni : CpuIsa::kAvx512;
#else
  return CpuIsa::kScalar;
#endif
}

std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<CpuIsa> isa) {
  HS_CHECK(threads >= 1, "a backend has at least one thread");
  const CpuIsa best = detect_cpu_isa();
  HS_CHECK(!isa || *isa <= best, "this processor lacks the instruction set");
  return std::make_unique<CpuBackend>(threads, isa.value_or(best));
}

}  // namespace hotset::kernels
