#include "sparse/second_moment.h"

#include <Eigen/Eigenvalues>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/concat.h"

namespace hotset::sparse {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix full_matrix(std::span<const double> lower_triangle, std::int32_t size) {
  const Eigen::Map<const Matrix> lower(lower_triangle.data(), size, size);
  return lower.selfadjointView<Eigen::Lower>();
}

// The `rank` leading eigenvectors into `u` [size, rank].
Result<void> leading_directions(const Matrix& moment, std::int32_t rank, std::span<float> u) {
  if (!moment.allFinite()) return corrupt("the keys hold values that are not finite");
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(moment);
  if (solver.info() != Eigen::Success) return Error{ErrorCode::kInternal, "the eigenvectors were not found", {}};
  const Eigen::Index size = moment.rows();
  for (std::int32_t column = 0; column < rank; ++column) {
    const auto direction = solver.eigenvectors().col(size - 1 - column);  // eigenvalues come in ascending order
    Eigen::Index largest = 0;
    direction.cwiseAbs().maxCoeff(&largest);
    const double sign = direction(largest) < 0 ? -1.0 : 1.0;
    for (Eigen::Index row = 0; row < size; ++row) {
      u[static_cast<std::size_t>(row * rank + column)] = static_cast<float>(sign * direction(row));
    }
  }
  return {};
}

}  // namespace

SecondMoment::SecondMoment(std::int32_t layers, std::int32_t kv_heads, std::int32_t key_dim)
    : kv_heads_(kv_heads), key_dim_(key_dim), sums_(static_cast<std::size_t>(layers)) {
  for (auto& sums : sums_) sums.assign(static_cast<std::size_t>(kv_heads) * key_dim * key_dim, 0.0);
}

void SecondMoment::add(std::int32_t layer, std::span<const float> keys) {
  const auto dim = static_cast<std::size_t>(key_dim_);
  HS_CHECK(keys.size() % (kv_heads_ * dim) == 0, "keys come in whole rows");
  auto& sums = sums_[static_cast<std::size_t>(layer)];
  std::vector<double> key(dim);
  for (std::size_t at = 0, head = 0; at < keys.size(); at += dim, head = (head + 1) % kv_heads_) {
    for (std::size_t i = 0; i < dim; ++i) key[i] = keys[at + i];
    double* sum = &sums[head * dim * dim];
    for (std::size_t i = 0; i < dim; ++i, sum += dim) {
      const double left = key[i];
      for (std::size_t j = 0; j <= i; ++j) sum[j] += left * key[j];
    }
  }
}

std::span<const double> SecondMoment::of(std::int32_t layer, std::int32_t kv_head) const {
  const auto size = static_cast<std::size_t>(key_dim_) * key_dim_;
  return std::span(sums_[static_cast<std::size_t>(layer)]).subspan(static_cast<std::size_t>(kv_head) * size, size);
}

Result<IndexBasis> make_index_basis(const SecondMoment& moment, std::int32_t rank) {
  if (auto ok = check_index_rank(rank, moment.key_dim(), "--index-rank"); !ok) return ok.error();
  IndexBasis basis{.layers = moment.layers(), .kv_heads = moment.kv_heads(), .key_dim = moment.key_dim(), .rank = rank};
  const auto head_size = static_cast<std::size_t>(moment.key_dim()) * rank;
  for (std::int32_t layer = 0; layer < basis.layers; ++layer) {
    std::vector<float> u(head_size * basis.kv_heads);
    for (std::int32_t head = 0; head < basis.kv_heads; ++head) {
      const auto target = std::span(u).subspan(head * head_size, head_size);
      const auto found = leading_directions(full_matrix(moment.of(layer, head), basis.key_dim), rank, target);
      if (!found) return Error{found.error().code, concat("layer ", layer, ": ", found.error().message), {}};
    }
    basis.u.push_back(std::move(u));
  }
  hash_index_basis(basis);
  return basis;
}

std::vector<std::vector<double>> captured_share(const SecondMoment& moment, const IndexBasis& basis) {
  const auto head_size = static_cast<std::size_t>(basis.key_dim) * basis.rank;
  std::vector<std::vector<double>> shares;
  for (std::int32_t layer = 0; layer < basis.layers; ++layer) {
    std::vector<double>& of_layer = shares.emplace_back();
    for (std::int32_t head = 0; head < basis.kv_heads; ++head) {
      const Matrix full = full_matrix(moment.of(layer, head), basis.key_dim);
      const Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> u(
          basis.of(layer).data() + head * head_size, basis.key_dim, basis.rank);
      const Matrix directions = u.cast<double>();
      const double total = full.trace();
      of_layer.push_back(total > 0 ? (directions.transpose() * full * directions).trace() / total : 1.0);
    }
  }
  return shares;
}

}  // namespace hotset::sparse
