// Rows written on the device, byte for byte as encode_row of core/kv_format.cpp writes them. A warp for every piece: up
// to 128 channels of one head, which is an FP8 scale group.
#include "kernels/cuda/attention/row_encoding.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPiece = static_cast<int>(kFp8ScaleChannels);

struct StoreArgs {
  RowView view;
  const void* k;
  std::int64_t k_stride;
  const void* v;
  std::int64_t v_stride;
  std::byte* pool;
  const std::int64_t* slots;
  std::byte* const* rows_out;
  std::int64_t rows;
  std::int32_t key_pieces, value_pieces;  // of all heads
  bool bf16_activations;
};

__device__ void store_plain(const float (&x)[kPiece / 32], int count, KvDType dtype, std::byte* to, int lane) {
  for (int i = 0; i < kPiece / 32; ++i) {
    const int c = lane + 32 * i;
    if (c >= count) continue;
    if (dtype == KvDType::kF32) {
      reinterpret_cast<float*>(to)[c] = x[i];
    } else {
      reinterpret_cast<std::uint16_t*>(to)[c] = round_to_bf16(x[i]);
    }
  }
}

__device__ void store_group(const float (&x)[kPiece / 32], int count, std::byte* codes, std::byte* scale_out,
                            int lane) {
  std::uint32_t bits = 0;
  for (int i = 0; i < kPiece / 32; ++i) {
    if (lane + 32 * i < count) bits = max(bits, magnitude_bits(x[i]));
  }
  const Fp8Group group(__reduce_max_sync(0xffffffffU, bits));
  for (int i = 0; i < kPiece / 32; ++i) {
    const int c = lane + 32 * i;
    if (c < count) codes[c] = static_cast<std::byte>(group.code(x[i]));
  }
  if (lane == 0) *reinterpret_cast<float*>(scale_out) = group.scale;
}

__device__ void load_piece(const StoreArgs& args, const void* from, std::int64_t at, int count, int lane,
                           float (&x)[kPiece / 32]) {
  for (int i = 0; i < kPiece / 32; ++i) {
    const int c = lane + 32 * i;
    x[i] = c < count ? load_activation(from, args.bf16_activations, at + c) : 0.0F;
  }
}

// Piece `piece` of one side (key or value): `groups` pieces a head of `dim` channels.
__device__ void store_piece(const StoreArgs& args, std::int64_t token, bool value, int piece, std::byte* row,
                            int lane) {
  const RowView& view = args.view;
  const bool latent_fp8 = view.latent && view.dtype == KvDType::kFp8;
  const int dim = value || latent_fp8 ? view.value_dim : view.key_dim;
  const int groups = value || latent_fp8 ? view.value_scales : view.key_scales;
  const void* const from = value ? args.v : args.k;
  const std::int64_t from_row = token * (value ? args.v_stride : args.k_stride);
  float x[kPiece / 32];
  if (latent_fp8 && piece >= groups) {  // rope part
    const int first = view.value_dim + (piece - groups) * kPiece;
    const int count = min(kPiece, view.key_dim - first);
    load_piece(args, from, from_row + first, count, lane, x);
    store_plain(x, count, KvDType::kBF16, row + view.rope_offset + 2 * (first - view.value_dim), lane);
    return;
  }
  const int head = piece / groups;
  const int first = (piece % groups) * kPiece;
  const int count = min(kPiece, dim - first);
  const std::int64_t element = std::int64_t{head} * dim + first;
  load_piece(args, from, from_row + element, count, lane, x);
  std::byte* const side = row + (value ? view.value_offset : 0);
  if (view.dtype == KvDType::kFp8) {
    std::byte* const scales = row + (value ? view.value_scales_offset : view.key_scales_offset);
    store_group(x, count, side + element, scales + 4 * piece, lane);
  } else {
    store_plain(x, count, view.dtype, side + element * (view.dtype == KvDType::kF32 ? 4 : 2), lane);
  }
}

__global__ void __launch_bounds__(kThreads) store_rows(StoreArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t per_row = args.key_pieces + args.value_pieces + 1;
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
  for (std::int64_t job = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; job < args.rows * per_row;
       job += warps) {
    const std::int64_t token = job / per_row;
    const int piece = static_cast<int>(job % per_row);
    std::byte* row = nullptr;
    if (args.slots != nullptr) {
      if (args.slots[token] >= 0) row = args.pool + args.slots[token] * args.view.row_bytes;
    } else {
      row = args.rows_out[token];
    }
    if (row == nullptr) continue;
    if (piece < args.key_pieces) {
      store_piece(args, token, false, piece, row, lane);
    } else if (piece < args.key_pieces + args.value_pieces) {
      store_piece(args, token, true, piece - args.key_pieces, row, lane);
    } else if (args.view.dtype == KvDType::kFp8) {
      clear_padding(args.view, row, lane, 32);
    }
  }
}

}  // namespace

void launch_store_rows(const DeviceStoreRowsParams& params, Stream stream) {
  if (params.rows <= 0) return;
  HS_CHECK((params.slots != nullptr) != (params.rows_out != nullptr), "rows go to slots or to addresses");
  const RowView view = row_view(params.geometry);
  const bool latent_fp8 = view.latent && view.dtype == KvDType::kFp8;
  const std::int64_t rope_pieces = ceil_div(view.key_dim - view.value_dim, kPiece);
  const std::int64_t key_pieces =
      latent_fp8 ? view.value_scales + rope_pieces : std::int64_t{view.kv_heads} * view.key_scales;
  StoreArgs args{.view = view,
                 .k = params.k,
                 .k_stride = params.k_stride,
                 .v = params.v,
                 .v_stride = params.v_stride,
                 .pool = params.pool,
                 .slots = params.slots,
                 .rows_out = params.rows_out,
                 .rows = params.rows,
                 .key_pieces = static_cast<std::int32_t>(key_pieces),
                 .value_pieces = view.latent ? 0 : view.kv_heads * view.value_scales,
                 .bf16_activations = params.activation == ActivationType::kBF16};
  const std::int64_t jobs = params.rows * (args.key_pieces + args.value_pieces + 1);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(ceil_div(jobs, kThreads / 32), 4096));
  store_rows<<<blocks, kThreads, 0, stream>>>(args);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
