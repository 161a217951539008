// Weights as the CPU's inner loops want them: panels of 16 output channels, so that a SIMD lane is an output channel.
//
// Float formats keep their elements: panel [K][16].
// Quantised formats become value = scale * code + offset (block_formats.h), exactly: per group of 32 (Q6_K: 16) inputs
//   scale[16], offset[16]     f16 where the file's are and both fit, else f32
//   codes                     a 32-bit word per lane holds 4 consecutive k. 8 bits: group / 4 words of 16 lanes.
//                             4 bits: 4 words; low nibbles are k 0..15, high nibbles k 16..31
// N is padded to 16 with zero channels.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa_kernels.h"

namespace hotset::kernels {

class ThreadPool;

class CpuPackedMatrix final : public PackedMatrix {
 public:
  CpuPackedMatrix(const MatrixView& matrix, ThreadPool& pool);

  [[nodiscard]] std::int64_t rows() const override { return rows_; }
  [[nodiscard]] std::int64_t cols() const override { return cols_; }
  [[nodiscard]] std::int64_t bytes() const override { return data_.bytes(); }

  [[nodiscard]] PanelView view() const { return {kind_, data_.data(), panel_bytes_, rows_, cols_}; }
  [[nodiscard]] int group() const { return group_; }  // 0 for float formats
  [[nodiscard]] std::int64_t panels() const { return (rows_ + kLanes - 1) / kLanes; }

  // out[cols] = row `row` in float32: one fused multiply-add per element.
  void read_row(std::int64_t row, float* out) const;

 private:
  void pack_float_panel(const MatrixView& matrix, std::int64_t panel);
  void pack_quantized_panel(const MatrixView& matrix, std::int64_t panel);
  [[nodiscard]] bool scales_fit_f16(const MatrixView& matrix) const;
  [[nodiscard]] int scale_bytes() const;
  [[nodiscard]] std::int64_t group_bytes() const;

  std::int64_t rows_;
  std::int64_t cols_;
  int code_bits_ = 0;
  int group_ = 0;
  PanelKind kind_ = PanelKind::kF32;
  std::int64_t panel_bytes_ = 0;
  AlignedBuffer<std::uint8_t> data_;
};

// A matrix that this backend packed; HS_CHECK otherwise.
[[nodiscard]] const CpuPackedMatrix& own_matrix(const PackedMatrix* matrix);

}  // namespace hotset::kernels
