#include "kernels/dense_backend.h"

#include <array>
#include <utility>

namespace hotset::kernels {

void PackedExperts::set_random(const ExpertsShape& shape, std::uint64_t seed, float deviation, float down_deviation) {
  for (std::int32_t expert = 0; expert < shape.count; ++expert) {
    for (const Part part : {Part::kGate, Part::kUp, Part::kDown}) {
      const bool down = part == Part::kDown;
      const std::int64_t rows = down ? shape.hidden : shape.intermediate;
      const std::int64_t cols = down ? shape.intermediate : shape.hidden;
      RandomNumbers numbers = random_rows(seed, down ? down_deviation : deviation, cols);
      numbers.first = (3 * std::int64_t{expert} + static_cast<int>(part)) * rows * cols;
      const std::vector<std::uint16_t> bits = random_matrix_bits(numbers, rows, cols);
      set(expert, part, {WeightType::kBF16, rows, cols, std::as_bytes(std::span(bits))});
    }
  }
}

std::unique_ptr<PackedMatrix> DenseBackend::random_matrix(const RandomNumbers& numbers, std::int64_t rows,
                                                          std::int64_t cols) {
  const std::vector<std::uint16_t> bits = random_matrix_bits(numbers, rows, cols);
  return pack({WeightType::kBF16, rows, cols, std::as_bytes(std::span(bits))});
}

JoinedMatrices DenseBackend::pack_joined(std::span<const MatrixView> matrices) {
  JoinedMatrices out;
  for (const MatrixView& matrix : matrices) out.parts.push_back(pack(matrix));
  return out;
}

JoinedMatrices DenseBackend::random_joined(std::span<const RandomPart> matrices) {
  JoinedMatrices out;
  for (const RandomPart& part : matrices) out.parts.push_back(random_matrix(part.numbers, part.rows, part.cols));
  return out;
}

std::vector<std::unique_ptr<PackedMatrix>> DenseBackend::random_batch(const RandomNumbers& numbers, std::int64_t count,
                                                                      std::int64_t rows, std::int64_t cols) {
  const std::vector<std::uint16_t> bits = random_matrix_bits(numbers, count * rows, cols);
  std::vector<MatrixView> views;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto part =
        std::span(bits).subspan(static_cast<std::size_t>(i * rows * cols), static_cast<std::size_t>(rows * cols));
    views.push_back({WeightType::kBF16, rows, cols, std::as_bytes(part)});
  }
  return pack_batch(views);
}

}  // namespace hotset::kernels
