// From cached keys to the basis of low-rank index keys: the leading eigenvectors of each KV head's second moment
// K^T K (Singhania et al., Loki, NeurIPS 2024). Built only with the distribution's libraries: Eigen finds the
// eigenvectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"
#include "sparse/index_basis.h"

namespace hotset::sparse {

// Sums of products of key channels, per layer and KV head, in float64 and in the order of the rows: how the rows are
// cut into calls changes no bit. One owner, one thread. Memory: layers * kv_heads * key_dim^2 * 8 bytes.
class SecondMoment {
 public:
  SecondMoment(std::int32_t layers, std::int32_t kv_heads, std::int32_t key_dim);

  // `keys`: [rows, kv_heads * key_dim] as cached, after RoPE.
  void add(std::int32_t layer, std::span<const float> keys);

  [[nodiscard]] std::int32_t layers() const { return static_cast<std::int32_t>(sums_.size()); }
  [[nodiscard]] std::int32_t kv_heads() const { return kv_heads_; }
  [[nodiscard]] std::int32_t key_dim() const { return key_dim_; }
  // [key_dim, key_dim], row-major; only the lower triangle (column <= row) is filled.
  [[nodiscard]] std::span<const double> of(std::int32_t layer, std::int32_t kv_head) const;

 private:
  std::int32_t kv_heads_;
  std::int32_t key_dim_;
  std::vector<std::vector<double>> sums_;  // [layers], each [kv_heads, key_dim, key_dim]
};

// Columns by falling eigenvalue; the entry of largest magnitude in each column (the first one of equals) is positive. A
// head whose keys span fewer than `rank` directions is filled up with orthonormal ones. Errors: a rank that
// check_index_rank() refuses (param --index-rank); kCorrupt when the keys held values that are not finite.
Result<IndexBasis> make_index_basis(const SecondMoment& moment, std::int32_t rank);

// Share of the second moment's trace (the keys' total energy) that lies in the basis, per layer and KV head:
// [layers][kv_heads], 0 ... 1 but for rounding; 1 where all keys are zero. `basis` has the moment's layers, KV heads
// and key_dim.
[[nodiscard]] std::vector<std::vector<double>> captured_share(const SecondMoment& moment, const IndexBasis& basis);

}  // namespace hotset::sparse
