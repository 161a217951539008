// Mixture of experts on the device: out[r, :] += sum over the row's experts, in ascending expert number, of
// weight * down(silu(gate(x)) * up(x)). Everything hangs on ids that lie on the device: no launch waits for the host.
//
// Forms:
// - kF32: plain, sums in ascending k. Within 2^-22 sqrt(k) of the sum of magnitudes.
// - kBF16: x and silu(gate) * up are rounded to bfloat16, products are exact, sums float32. Tensor cores on Hopper.
// - kFp8Block: weights e4m3 with a float32 scale for each 128 x 128 (DeepSeek-V3's `weight_scale_inv`); x and
//   silu(gate) * up are quantised per row and 128 channels: scale = largest / 448, code = e4m3(x / scale). Sums of 128
//   of k by the tensor cores (within 2^-12 of the sum of magnitudes), added up in float32. Hopper only.
// Within a form a row's bits depend on its own x, ids and weights only: not on the other rows, their number, or the
// order of its ids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

inline constexpr int kMostExpertsOfARow = 64;

enum class ExpertFormat : std::uint8_t { kF32, kBF16, kFp8Block };

// Device pointers, each 16-byte aligned.
struct ExpertWeights {
  ExpertFormat format = ExpertFormat::kBF16;
  std::int32_t experts = 0;               // at most 512
  std::int64_t hidden = 0;                // a multiple of 16; kFp8Block: of 128
  std::int64_t intermediate = 0;          // likewise
  const void* gate_up = nullptr;          // [experts][2][intermediate][hidden]: gate, then up
  const void* down = nullptr;             // [experts][hidden][intermediate]
  const float* gate_up_scales = nullptr;  // kFp8Block: [experts][2][intermediate / 128][hidden / 128]
  const float* down_scales = nullptr;     // kFp8Block: [experts][hidden / 128][intermediate / 128]
};

// Device pointers.
struct ExpertsDeviceParams {
  ExpertWeights experts;
  const void* x = nullptr;  // [rows, hidden] of x_type, rows on 16 bytes
  ActivationType x_type = ActivationType::kF32;
  std::int64_t x_stride = 0;          // elements, 0: hidden
  const std::int32_t* ids = nullptr;  // [rows, per_token], different ones in a row; negative: none (padded rows)
  const float* weights = nullptr;     // [rows, per_token]
  std::int32_t per_token = 0;         // at most 64
  std::int64_t rows = 0;
  float* out = nullptr;         // [rows, hidden], rows on 16 bytes
  std::int64_t out_stride = 0;  // elements, 0: hidden
  void* workspace = nullptr;    // experts_workspace_bytes(), 256-byte aligned; not shared with work on other streams
};

// About 4 (hidden + intermediate) bytes for each row and expert of it.
[[nodiscard]] std::size_t experts_workspace_bytes(const ExpertWeights& experts, std::int64_t rows,
                                                  std::int32_t per_token);

// Throws CudaError for kFp8Block where the device is not a Hopper.
void launch_experts(const ExpertsDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
