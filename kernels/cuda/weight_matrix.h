// A weight matrix on the device: row-major, in the compute type, no padding.
#pragma once

#include <functional>

#include "kernels/cuda/device.h"
#include "kernels/cuda/experts.h"
#include "kernels/dense_backend.h"

namespace hotset::kernels::cuda {

class WeightMatrix final : public PackedMatrix {
 public:
  WeightMatrix(std::shared_ptr<Memory> memory, std::int64_t offset_bytes, std::int64_t rows, std::int64_t cols,
               ElementType type)
      : memory_(std::move(memory)), offset_bytes_(offset_bytes), rows_(rows), cols_(cols), type_(type) {}
  [[nodiscard]] std::int64_t rows() const override { return rows_; }
  [[nodiscard]] std::int64_t cols() const override { return cols_; }
  [[nodiscard]] std::int64_t bytes() const override { return rows_ * cols_ * element_bytes(type_); }
  [[nodiscard]] const void* data() const { return static_cast<const std::byte*>(memory_->data()) + offset_bytes_; }
  [[nodiscard]] ElementType type() const { return type_; }

 private:
  std::shared_ptr<Memory> memory_;  // perhaps of several matrices
  std::int64_t offset_bytes_;
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

 private:
  const DeviceStream& stream_;
  DeviceArena& arena_;
  std::unique_ptr<Memory> staging_;
};

// gate_up [experts][2][intermediate][hidden] and down [experts][hidden][intermediate], as launch_experts reads them.
class DeviceExperts final : public PackedExperts {
 public:
  // The uploader outlives it.
  DeviceExperts(const ExpertsShape& shape, ElementType type, WeightUploader& uploader, DeviceArena& arena);
  void set(std::int32_t expert, Part part, const MatrixView& matrix) override;
  void set_random(const ExpertsShape& shape, std::uint64_t seed, float deviation, float down_deviation) override;
  [[nodiscard]] std::int64_t bytes() const override { return 3 * part_bytes() * shape_.count; }
  [[nodiscard]] ExpertWeights weights() const;

 private:
  [[nodiscard]] std::int64_t part_bytes() const { return shape_.hidden * shape_.intermediate * element_bytes(type_); }

  ExpertsShape shape_;
  ElementType type_;
  WeightUploader& uploader_;
  std::unique_ptr<Memory> gate_up_, down_;
};

}  // namespace hotset::kernels::cuda
