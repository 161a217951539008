#include "kernels/cuda/weight_matrix.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/half.h"
#include "kernels/cpu/block_formats.h"
#include "kernels/cuda/random_fill.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{32} << 20;

// `count` elements of a float format, or of whole blocks.
void decode(WeightType type, const std::byte* source, std::int64_t count, float* out) {
  switch (type) {
    case WeightType::kF32: std::memcpy(out, source, static_cast<std::size_t>(count) * sizeof(float)); return;
    case WeightType::kF16:
    case WeightType::kBF16:
      for (std::int64_t i = 0; i < count; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, source + 2 * i, sizeof bits);
        out[i] = type == WeightType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
      }
      return;
    default: break;
  }
  const BlockFormat format = block_format(type);
  const int group = affine_format(type).group;
  AffineBlock block;
  for (std::int64_t first = 0; first < count; first += format.elements, source += format.bytes) {
    read_block(type, source, block);
    for (int i = 0; i < format.elements; ++i) {
      out[first + i] = block.scales[i / group] * static_cast<float>(block.codes[i]) + block.offsets[i / group];
    }
  }
}

}  // namespace

std::unique_ptr<WeightMatrix> WeightUploader::upload(const MatrixView& view, ElementType type) {
  auto memory = arena_.allocate(view.rows * view.cols * element_bytes(type));
  upload_to(view, type, memory->data());
  return std::make_unique<WeightMatrix>(std::move(memory), 0, view.rows, view.cols, type);
}

std::vector<std::unique_ptr<PackedMatrix>> WeightUploader::upload_batch(std::span<const MatrixView> views,
                                                                        ElementType type) {
  std::vector<std::unique_ptr<PackedMatrix>> out;
  if (views.empty()) return out;
  const MatrixView& first = views.front();
  const std::int64_t bytes = first.rows * first.cols * element_bytes(type);
  const std::shared_ptr<Memory> memory = arena_.allocate(bytes * static_cast<std::int64_t>(views.size()));
  for (const MatrixView& view : views) {
    HS_CHECK(view.rows == first.rows && view.cols == first.cols, "the matrices have one shape");
    const std::int64_t offset = bytes * static_cast<std::int64_t>(out.size());
    upload_to(view, type, static_cast<std::byte*>(memory->data()) + offset);
    out.push_back(std::make_unique<WeightMatrix>(memory, offset, view.rows, view.cols, type));
  }
  return out;
}

void WeightUploader::copy(const void* source, void* target, std::int64_t bytes) {
  if (staging_ == nullptr) staging_ = allocate_pinned(kStagingBytes);
  for (std::int64_t first = 0; first < bytes; first += kStagingBytes) {
    const std::int64_t count = std::min(kStagingBytes, bytes - first);
    std::memcpy(staging_->data(), static_cast<const std::byte*>(source) + first, static_cast<std::size_t>(count));
    stream_.copy(staging_->data(), static_cast<std::byte*>(target) + first, count);
    stream_.synchronize();
  }
}

void WeightUploader::upload_to(const MatrixView& view, ElementType type, void* to) {
  const std::int64_t elements = view.rows * view.cols;
  const WeightType same = type == ElementType::kF32 ? WeightType::kF32 : WeightType::kBF16;
  if (view.type == same) return copy(view.data.data(), to, elements * element_bytes(type));
  if (staging_ == nullptr) staging_ = allocate_pinned(kStagingBytes);
  auto* const staging = static_cast<std::byte*>(staging_->data());
  auto* target = static_cast<std::byte*>(to);
  const BlockFormat format = block_format(view.type);
  // Whole blocks of the file, as many as fit.
  const std::int64_t step = kStagingBytes / element_bytes(type) / format.elements * format.elements;
  std::vector<float> values(static_cast<std::size_t>(std::min(step, elements)));
  for (std::int64_t first = 0; first < elements; first += step) {
    const std::int64_t count = std::min(step, elements - first);
    const std::byte* const source = view.data.data() + first / format.elements * format.bytes;
    const std::int64_t bytes = count * element_bytes(type);
    if (type == ElementType::kF32) {
      decode(view.type, source, count, reinterpret_cast<float*>(staging));
    } else {
      decode(view.type, source, count, values.data());
      auto* const out = reinterpret_cast<std::uint16_t*>(staging);
      for (std::int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(values[static_cast<std::size_t>(i)]);
    }
    stream_.copy(staging, target, bytes);
    stream_.synchronize();
    target += bytes;
  }
}

JoinedMatrices WeightUploader::join(std::span<const std::int64_t> rows, std::int64_t cols, ElementType type,
                                    const std::function<void(std::size_t index, void* target)>& fill) {
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const std::int64_t row_bytes = cols * element_bytes(type);
  const std::shared_ptr<Memory> memory = arena_.allocate(all * row_bytes);
  JoinedMatrices out;
  out.all = std::make_unique<WeightMatrix>(memory, 0, all, cols, type);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    fill(i, static_cast<std::byte*>(memory->data()) + first * row_bytes);
    out.parts.push_back(std::make_unique<WeightMatrix>(memory, first * row_bytes, rows[i], cols, type));
    first += rows[i];
  }
  return out;
}

std::vector<std::unique_ptr<PackedMatrix>> WeightUploader::make_random(const RandomNumbers& numbers, std::int64_t count,
                                                                       std::int64_t rows, std::int64_t cols,
                                                                       ElementType type) {
  const std::int64_t bytes = rows * cols * element_bytes(type);
  const std::shared_ptr<Memory> memory = arena_.allocate(bytes * count);
  fill_random(numbers, count * rows, cols, type, memory->data());
  std::vector<std::unique_ptr<PackedMatrix>> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(std::make_unique<WeightMatrix>(memory, i * bytes, rows, cols, type));
  return out;
}

void WeightUploader::fill_random(const RandomNumbers& numbers, std::int64_t rows, std::int64_t cols, ElementType type,
                                 void* target) {
  launch_random_fill({.numbers = numbers,
                      .rows = rows,
                      .cols = cols,
                      .out = target,
                      .type = type == ElementType::kF32 ? ActivationType::kF32 : ActivationType::kBF16},
                     stream_.get());
}

JoinedMatrices WeightUploader::join_fp8(std::span<const std::int64_t> rows, std::int64_t cols,
                                        const std::function<void(std::size_t index, Fp8Target target)>& fill) {
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const std::int64_t scales = all * cols;  // a multiple of kFp8Block
  const std::shared_ptr<Memory> memory = arena_.allocate(fp8_weight_bytes(all, cols));
  auto* const base = static_cast<std::byte*>(memory->data());
  JoinedMatrices out;
  out.all = std::make_unique<WeightMatrix>(memory, 0, scales, all, cols);
  std::int64_t first = 0;
  for (const std::int64_t of_part : rows) {
    HS_CHECK(first % kFp8Block == 0, "no scale is that of two matrices");
    const std::int64_t own_scales = scales + fp8_scale_count(first, cols) * static_cast<std::int64_t>(sizeof(float));
    fill(out.parts.size(), {base + first * cols, reinterpret_cast<float*>(base + own_scales)});
    out.parts.push_back(std::make_unique<WeightMatrix>(memory, first * cols, own_scales, of_part, cols));
    first += of_part;
  }
  return out;
}

void WeightUploader::upload_fp8_to(const MatrixView& view, Fp8Target target) {
  HS_CHECK(view.type == WeightType::kFp8Block && std::ssize(view.scales) == fp8_scale_count(view.rows, view.cols),
           "the matrix is FP8");
  copy(view.data.data(), target.codes, view.rows * view.cols);
  copy(view.scales.data(), target.scales, static_cast<std::int64_t>(view.scales.size_bytes()));
}

void WeightUploader::fill_random_fp8(const RandomNumbers& numbers, std::int64_t rows, std::int64_t cols,
                                     Fp8Target target) {
  launch_random_fp8_fill({.numbers = numbers,
                          .rows = rows,
                          .cols = cols,
                          .codes = reinterpret_cast<std::uint8_t*>(target.codes),
                          .scales = target.scales,
                          .scale_count = fp8_scale_count(rows, cols)},
                         stream_.get());
}

DeviceExperts::DeviceExperts(const ExpertsShape& shape, ElementType type, WeightUploader& uploader, DeviceArena& arena)
    : shape_(shape), type_(type), uploader_(uploader) {
  const std::int64_t bytes = (part_bytes() + part_scales() * static_cast<std::int64_t>(sizeof(float))) * shape.count;
  gate_up_ = arena.allocate(2 * bytes);
  down_ = arena.allocate(bytes);
}

WeightUploader::Fp8Target DeviceExperts::fp8_target(const Memory& memory, std::int64_t parts,
                                                    std::int64_t place) const {
  auto* const codes = static_cast<std::byte*>(memory.data());
  auto* const scales = reinterpret_cast<float*>(codes + parts * shape_.count * part_bytes());
  return {codes + place * part_bytes(), scales + place * part_scales()};
}

void DeviceExperts::set(std::int32_t expert, Part part, const MatrixView& matrix) {
  const bool down = part == Part::kDown;
  HS_CHECK(expert >= 0 && expert < shape_.count, "there is no such expert");
  HS_CHECK(matrix.rows == (down ? shape_.hidden : shape_.intermediate) &&
               matrix.cols == (down ? shape_.intermediate : shape_.hidden),
           "the experts have one shape");
  const std::int64_t place = down ? expert : 2 * std::int64_t{expert} + (part == Part::kUp ? 1 : 0);
  const Memory& memory = down ? *down_ : *gate_up_;
  if (shape_.fp8) return uploader_.upload_fp8_to(matrix, fp8_target(memory, down ? 1 : 2, place));
  uploader_.upload_to(matrix, type_, static_cast<std::byte*>(memory.data()) + place * part_bytes());
}

void DeviceExperts::set_random(const ExpertsShape& shape, std::uint64_t seed, float deviation, float down_deviation) {
  HS_CHECK(shape.count == shape_.count && shape.hidden == shape_.hidden && shape.intermediate == shape_.intermediate,
           "the experts have one shape");
  const std::int64_t part = shape_.hidden * shape_.intermediate;
  RandomNumbers numbers{.seed = seed, .deviation = deviation, .group_step = 3 * part};
  numbers.group_rows = 2 * shape_.intermediate;
  numbers.row_step = shape_.hidden;
  const auto fill = [&](Memory& memory, std::int64_t parts, std::int64_t cols) {
    const std::int64_t rows = shape_.count * numbers.group_rows;
    if (shape_.fp8) return uploader_.fill_random_fp8(numbers, rows, cols, fp8_target(memory, parts, 0));
    uploader_.fill_random(numbers, rows, cols, type_, memory.data());
  };
  fill(*gate_up_, 2, shape_.hidden);
  numbers.deviation = down_deviation;
  numbers.first = 2 * part;
  numbers.group_rows = shape_.hidden;
  numbers.row_step = shape_.intermediate;
  fill(*down_, 1, shape_.intermediate);
}

ExpertWeights DeviceExperts::weights() const {
  return {.format = shape_.fp8                   ? ExpertFormat::kFp8Block
                    : type_ == ElementType::kF32 ? ExpertFormat::kF32
                                                 : ExpertFormat::kBF16,
          .experts = shape_.count,
          .hidden = shape_.hidden,
          .intermediate = shape_.intermediate,
          .gate_up = gate_up_->data(),
          .down = down_->data(),
          .gate_up_scales = shape_.fp8 ? fp8_target(*gate_up_, 2, 0).scales : nullptr,
          .down_scales = shape_.fp8 ? fp8_target(*down_, 1, 0).scales : nullptr};
}

}  // namespace hotset::kernels::cuda
