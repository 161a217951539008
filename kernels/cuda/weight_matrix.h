// A weight matrix on the device: row-major, in the compute type or in FP8 with block scales, no padding.
#pragma once

#include <functional>
#include <optional>

#include "kernels/cuda/device.h"
#include "kernels/cuda/experts.h"
#include "kernels/dense_backend.h"

namespace hotset::kernels::cuda {

// Numbers of the scales of an FP8 matrix: [ceil(rows / kFp8Block), cols / kFp8Block].
[[nodiscard]] constexpr std::int64_t fp8_scale_count(std::int64_t rows, std::int64_t cols) {
  return (rows + kFp8Block - 1) / kFp8Block * (cols / kFp8Block);
}
// Of codes and scales.
[[nodiscard]] constexpr std::int64_t fp8_weight_bytes(std::int64_t rows, std::int64_t cols) {
  return rows * cols + fp8_scale_count(rows, cols) * static_cast<std::int64_t>(sizeof(float));
}

class WeightMatrix final : public PackedMatrix {
 public:
  WeightMatrix(std::shared_ptr<Memory> memory, std::int64_t offset_bytes, std::int64_t rows, std::int64_t cols,
               ElementType type)
      : memory_(std::move(memory)), offset_bytes_(offset_bytes), rows_(rows), cols_(cols), type_(type) {}
  // In FP8: e4m3 at `offset_bytes`, scales at `scales_bytes` of the memory.
  WeightMatrix(std::shared_ptr<Memory> memory, std::int64_t offset_bytes, std::int64_t scales_bytes, std::int64_t rows,
               std::int64_t cols)
      : memory_(std::move(memory)),
        offset_bytes_(offset_bytes),
        scales_bytes_(scales_bytes),
        rows_(rows),
        cols_(cols),
        type_(ElementType::kBF16) {}
  [[nodiscard]] std::int64_t rows() const override { return rows_; }
  [[nodiscard]] std::int64_t cols() const override { return cols_; }
  [[nodiscard]] std::int64_t bytes() const override {
    return scales_bytes_ ? fp8_weight_bytes(rows_, cols_) : rows_ * cols_ * element_bytes(type_);
  }
  [[nodiscard]] const void* data() const { return at(offset_bytes_); }
  [[nodiscard]] ElementType type() const { return type_; }  // FP8: kBF16, which it is multiplied in
  [[nodiscard]] const float* scales() const {               // null: not FP8
    return scales_bytes_ ? static_cast<const float*>(at(*scales_bytes_)) : nullptr;
  }

 private:
  [[nodiscard]] const void* at(std::int64_t offset) const {
    return static_cast<const std::byte*>(memory_->data()) + offset;
  }

  std::shared_ptr<Memory> memory_;  // perhaps of several matrices
  std::int64_t offset_bytes_;
  std::optional<std::int64_t> scales_bytes_;
  std::int64_t rows_, cols_;
  ElementType type_;
};

// Uploads matrices through one pinned buffer. Threads: one.
class WeightUploader {
 public:
  WeightUploader(const DeviceStream& stream, DeviceArena& arena) : stream_(stream), arena_(arena) {}
  // Elements are rounded to `type` to nearest even. Return when the view may go away.
  [[nodiscard]] std::unique_ptr<WeightMatrix> upload(const MatrixView& view, ElementType type);
  // One behind the other; all of one shape.
  [[nodiscard]] std::vector<std::unique_ptr<PackedMatrix>> upload_batch(std::span<const MatrixView> views,
                                                                        ElementType type);
  void upload_to(const MatrixView& view, ElementType type, void* target);
  // Memory for matrices of these rows, one behind the other; `fill` fills each.
  [[nodiscard]] JoinedMatrices join(std::span<const std::int64_t> rows, std::int64_t cols, ElementType type,
                                    const std::function<void(std::size_t index, void* target)>& fill);
  // Filled on the device, `count` matrices one behind the other; queued.
  [[nodiscard]] std::vector<std::unique_ptr<PackedMatrix>> make_random(const RandomNumbers& numbers, std::int64_t count,
                                                                       std::int64_t rows, std::int64_t cols,
                                                                       ElementType type);
  void fill_random(const RandomNumbers& numbers, std::int64_t rows, std::int64_t cols, ElementType type, void* target);

  // The same in FP8. All but the last of joined rows are multiples of kFp8Block, so that each has scales of its own.
  struct Fp8Target {
    std::byte* codes;
    float* scales;
  };
  [[nodiscard]] JoinedMatrices join_fp8(std::span<const std::int64_t> rows, std::int64_t cols,
                                        const std::function<void(std::size_t index, Fp8Target target)>& fill);
  void upload_fp8_to(const MatrixView& view, Fp8Target target);
  void fill_random_fp8(const RandomNumbers& numbers, std::int64_t rows, std::int64_t cols, Fp8Target target);

 private:
  void copy(const void* source, void* target, std::int64_t bytes);
  const DeviceStream& stream_;
  DeviceArena& arena_;
  std::unique_ptr<Memory> staging_;
};

// gate_up [experts][2][intermediate][hidden] and down [experts][hidden][intermediate], as launch_experts reads them; in
// FP8 where the shape says so, their scales behind all of them.
class DeviceExperts final : public PackedExperts {
 public:
  // The uploader outlives it.
  DeviceExperts(const ExpertsShape& shape, ElementType type, WeightUploader& uploader, DeviceArena& arena);
  void set(std::int32_t expert, Part part, const MatrixView& matrix) override;
  void set_random(const ExpertsShape& shape, std::uint64_t seed, float deviation, float down_deviation) override;
  [[nodiscard]] std::int64_t bytes() const override {
    return 3 * shape_.count * (part_bytes() + part_scales() * static_cast<std::int64_t>(sizeof(float)));
  }
  [[nodiscard]] ExpertWeights weights() const;

 private:
  [[nodiscard]] std::int64_t part_bytes() const {
    return shape_.hidden * shape_.intermediate * (shape_.fp8 ? 1 : element_bytes(type_));
  }
  [[nodiscard]] std::int64_t part_scales() const {
    return shape_.fp8 ? fp8_scale_count(shape_.hidden, shape_.intermediate) : 0;
  }
  // Of `parts` parts, each expert's side by side.
  [[nodiscard]] WeightUploader::Fp8Target fp8_target(const Memory& memory, std::int64_t parts,
                                                     std::int64_t place) const;

  ExpertsShape shape_;
  ElementType type_;
  WeightUploader& uploader_;
  std::unique_ptr<Memory> gate_up_, down_;
};

}  // namespace hotset::kernels::cuda
