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

void WeightUploader::upload_to(const MatrixView& view, ElementType type, void* to) {
  if (staging_ == nullptr) staging_ = allocate_pinned(kStagingBytes);
  auto* const staging = static_cast<std::byte*>(staging_->data());
  auto* target = static_cast<std::byte*>(to);
  const BlockFormat format = block_format(view.type);
  // Whole blocks of the file, as many as fit.
  const std::int64_t elements = view.rows * view.cols;
  const std::int64_t step = kStagingBytes / element_bytes(type) / format.elements * format.elements;
  const bool same = (view.type == WeightType::kBF16 && type == ElementType::kBF16) ||
                    (view.type == WeightType::kF32 && type == ElementType::kF32);
  std::vector<float> values(same ? 0 : static_cast<std::size_t>(std::min(step, elements)));
  for (std::int64_t first = 0; first < elements; first += step) {
    const std::int64_t count = std::min(step, elements - first);
    const std::byte* const source = view.data.data() + first / format.elements * format.bytes;
    const std::int64_t bytes = count * element_bytes(type);
    if (same) {
      std::memcpy(staging, source, static_cast<std::size_t>(bytes));
    } else if (type == ElementType::kF32) {
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

DeviceExperts::DeviceExperts(const ExpertsShape& shape, ElementType type, WeightUploader& uploader, DeviceArena& arena)
    : shape_(shape),
      type_(type),
      uploader_(uploader),
      gate_up_(arena.allocate(2 * part_bytes() * shape.count)),
      down_(arena.allocate(part_bytes() * shape.count)) {}

void DeviceExperts::set(std::int32_t expert, Part part, const MatrixView& matrix) {
  const bool down = part == Part::kDown;
  HS_CHECK(expert >= 0 && expert < shape_.count, "there is no such expert");
  HS_CHECK(matrix.rows == (down ? shape_.hidden : shape_.intermediate) &&
               matrix.cols == (down ? shape_.intermediate : shape_.hidden),
           "the experts have one shape");
  const std::int64_t place = down ? expert : 2 * std::int64_t{expert} + (part == Part::kUp ? 1 : 0);
  void* const memory = (down ? down_ : gate_up_)->data();
  uploader_.upload_to(matrix, type_, static_cast<std::byte*>(memory) + place * part_bytes());
}

void DeviceExperts::set_random(const ExpertsShape& shape, std::uint64_t seed, float deviation, float down_deviation) {
  HS_CHECK(shape.count == shape_.count && shape.hidden == shape_.hidden && shape.intermediate == shape_.intermediate,
           "the experts have one shape");
  const std::int64_t part = shape_.hidden * shape_.intermediate;
  RandomNumbers numbers{.seed = seed, .deviation = deviation, .group_step = 3 * part};
  numbers.group_rows = 2 * shape_.intermediate;
  numbers.row_step = shape_.hidden;
  uploader_.fill_random(numbers, shape_.count * numbers.group_rows, shape_.hidden, type_, gate_up_->data());
  numbers.deviation = down_deviation;
  numbers.first = 2 * part;
  numbers.group_rows = shape_.hidden;
  numbers.row_step = shape_.intermediate;
  uploader_.fill_random(numbers, shape_.count * shape_.hidden, shape_.intermediate, type_, down_->data());
}

ExpertWeights DeviceExperts::weights() const {
  return {.format = type_ == ElementType::kF32 ? ExpertFormat::kF32 : ExpertFormat::kBF16,
          .experts = shape_.count,
          .hidden = shape_.hidden,
          .intermediate = shape_.intermediate,
          .gate_up = gate_up_->data(),
          .down = down_->data()};
}

}  // namespace hotset::kernels::cuda
