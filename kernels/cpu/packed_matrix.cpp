#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/half.h"
#include "kernels/cpu/block_formats.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {
namespace {

bool fits_f16(float value) {
  const float back = f16_to_f32(f32_to_f16_exact(value));
  return back == value || (back != back && value != value);
}

// Where code k of a group lies: byte and shift within the group's codes.
struct CodePlace {
  std::int64_t byte;
  int shift;
};
CodePlace code_place(int code_bits, std::int64_t lane, int k) {
  const int word = code_bits == 4 ? k % 16 / 4 : k / 4;
  return {word * 4 * kLanes + 4 * lane + k % 4, code_bits == 4 && k >= 16 ? 4 : 0};
}

void store_scale(std::uint8_t* to, int bytes, float value) {
  if (bytes == 2) {
    const std::uint16_t half = f32_to_f16_exact(value);
    std::memcpy(to, &half, sizeof half);
  } else {
    std::memcpy(to, &value, sizeof value);
  }
}

float load_scale(const std::uint8_t* from, int bytes) {
  if (bytes == 4) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, from, sizeof half);
  return f16_to_f32(half);
}

PanelKind quantized_kind(int code_bits, int group, bool scale16) {
  if (group == 16) return PanelKind::kCode8Group16;
  if (code_bits == 4) return scale16 ? PanelKind::kCode4Scale16 : PanelKind::kCode4Scale32;
  return scale16 ? PanelKind::kCode8Scale16 : PanelKind::kCode8Scale32;
}

}  // namespace

const CpuPackedMatrix& own_matrix(const PackedMatrix* matrix) {
  const auto* own = dynamic_cast<const CpuPackedMatrix*>(matrix);
  HS_CHECK(own != nullptr, "the matrix was not packed by this backend");
  return *own;
}

CpuPackedMatrix::CpuPackedMatrix(const MatrixView& matrix, ThreadPool& pool) : rows_(matrix.rows), cols_(matrix.cols) {
  const BlockFormat format = block_format(matrix.type);
  HS_CHECK(rows_ >= 0 && cols_ >= 0 && cols_ % format.elements == 0, "matrix shape does not fit its format");
  HS_CHECK(static_cast<std::int64_t>(matrix.data.size()) == rows_ * (cols_ / format.elements) * format.bytes,
           "matrix data does not fit its shape");
  const AffineFormat affine = affine_format(matrix.type);
  code_bits_ = affine.code_bits;
  group_ = affine.group;
  if (group_ == 0) {
    kind_ = matrix.type == WeightType::kF32   ? PanelKind::kF32
            : matrix.type == WeightType::kF16 ? PanelKind::kF16
                                              : PanelKind::kBF16;
    panel_bytes_ = cols_ * kLanes * format.bytes;
  } else {
    kind_ = quantized_kind(code_bits_, group_, scales_fit_f16(matrix));
    panel_bytes_ = cols_ / group_ * group_bytes();
  }
  data_.reserve(panels() * panel_bytes_);
  pool.run(panels(), [&](std::int64_t panel, int) {
    std::memset(data_.data() + panel * panel_bytes_, 0, static_cast<std::size_t>(panel_bytes_));
    if (group_ == 0) {
      pack_float_panel(matrix, panel);
    } else {
      pack_quantized_panel(matrix, panel);
    }
  });
}

int CpuPackedMatrix::scale_bytes() const {
  return kind_ == PanelKind::kCode4Scale16 || kind_ == PanelKind::kCode8Scale16 ? 2 : 4;
}

std::int64_t CpuPackedMatrix::group_bytes() const {
  return std::int64_t{kLanes} * (2 * scale_bytes() + group_ * code_bits_ / 8);
}

// Q4_1 holds both in f16; Q4_0 and Q8_0 fit unless a scale is so large that -8 or -128 of it overflows; the K formats'
// products do not fit.
bool CpuPackedMatrix::scales_fit_f16(const MatrixView& matrix) const {
  if (matrix.type == WeightType::kQ4_1) return true;
  if (matrix.type != WeightType::kQ4_0 && matrix.type != WeightType::kQ8_0) return false;
  const float fold = matrix.type == WeightType::kQ4_0 ? -8.0F : -128.0F;
  const auto step = static_cast<std::size_t>(block_format(matrix.type).bytes);
  for (std::size_t at = 0; at < matrix.data.size(); at += step) {
    if (!fits_f16(fold * load_scale(reinterpret_cast<const std::uint8_t*>(matrix.data.data()) + at, 2))) return false;
  }
  return true;
}

void CpuPackedMatrix::pack_float_panel(const MatrixView& matrix, std::int64_t panel) {
  const auto size = static_cast<std::int64_t>(block_format(matrix.type).bytes);
  std::uint8_t* out = data_.data() + panel * panel_bytes_;
  const std::int64_t lanes = std::min<std::int64_t>(kLanes, rows_ - panel * kLanes);
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::byte* in = matrix.data.data() + (panel * kLanes + lane) * cols_ * size;
    for (std::int64_t k = 0; k < cols_; ++k) {
      std::memcpy(out + (k * kLanes + lane) * size, in + k * size, static_cast<std::size_t>(size));
    }
  }
}

void CpuPackedMatrix::pack_quantized_panel(const MatrixView& matrix, std::int64_t panel) {
  const BlockFormat format = block_format(matrix.type);
  const std::int64_t blocks = cols_ / format.elements;
  const int groups_per_block = format.elements / group_;
  const std::int64_t lanes = std::min<std::int64_t>(kLanes, rows_ - panel * kLanes);
  AffineBlock block;
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::byte* in = matrix.data.data() + (panel * kLanes + lane) * blocks * format.bytes;
    for (std::int64_t g = 0; g < blocks * groups_per_block; ++g) {
      const auto in_block = static_cast<int>(g % groups_per_block);
      if (in_block == 0) read_block(matrix.type, in + g / groups_per_block * format.bytes, block);
      std::uint8_t* out = data_.data() + panel * panel_bytes_ + g * group_bytes();
      store_scale(out + lane * scale_bytes(), scale_bytes(), block.scales[in_block]);
      store_scale(out + (kLanes + lane) * scale_bytes(), scale_bytes(), block.offsets[in_block]);
      std::uint8_t* codes = out + 2 * kLanes * scale_bytes();
      for (int k = 0; k < group_; ++k) {
        const CodePlace place = code_place(code_bits_, lane, k);
        codes[place.byte] =
            static_cast<std::uint8_t>(codes[place.byte] | block.codes[in_block * group_ + k] << place.shift);
      }
    }
  }
}

void CpuPackedMatrix::read_row(std::int64_t row, float* out) const {
  const std::uint8_t* panel = data_.data() + row / kLanes * panel_bytes_;
  const std::int64_t lane = row % kLanes;
  if (group_ == 0) {
    for (std::int64_t k = 0; k < cols_; ++k) {
      const std::int64_t at = k * kLanes + lane;
      std::uint16_t half;
      switch (kind_) {
        case PanelKind::kF32: std::memcpy(out + k, panel + 4 * at, 4); break;
        case PanelKind::kF16:
          std::memcpy(&half, panel + 2 * at, 2);
          out[k] = f16_to_f32(half);
          break;
        default:
          std::memcpy(&half, panel + 2 * at, 2);
          out[k] = bf16_to_f32(half);
          break;
      }
    }
    return;
  }
  const unsigned mask = code_bits_ == 4 ? 15U : 255U;
  for (std::int64_t g = 0; g < cols_ / group_; ++g) {
    const std::uint8_t* in = panel + g * group_bytes();
    const float scale = load_scale(in + lane * scale_bytes(), scale_bytes());
    const float offset = load_scale(in + (kLanes + lane) * scale_bytes(), scale_bytes());
    const std::uint8_t* codes = in + 2 * kLanes * scale_bytes();
    for (int k = 0; k < group_; ++k) {
      const CodePlace place = code_place(code_bits_, lane, k);
      const unsigned code = codes[place.byte] >> place.shift & mask;
      out[g * group_ + k] = std::fma(scale, static_cast<float>(code), offset);
    }
  }
}

}  // namespace hotset::kernels
