#include "sparse/index_basis.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/concat.h"
#include "core/splitmix.h"

namespace hotset::sparse {
namespace {

constexpr std::int32_t kLatentRank = 64;

using Direction = std::vector<double>;

double product(const Direction& a, const Direction& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Gram-Schmidt, twice: once leaves what rounding does to nearly parallel directions.
std::vector<Direction> random_directions(std::int32_t count, std::int32_t size, std::uint64_t& state) {
  std::vector<Direction> out;
  while (static_cast<std::int32_t>(out.size()) < count) {
    Direction next(static_cast<std::size_t>(size));
    for (double& x : next) {
      state = splitmix64(state);
      x = static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
    }
    for (int pass = 0; pass < 2; ++pass) {
      for (const Direction& other : out) {
        const double share = product(next, other);
        for (std::size_t i = 0; i < next.size(); ++i) next[i] -= share * other[i];
      }
      const double length = std::sqrt(product(next, next));
      for (double& x : next) x /= length;
    }
    out.push_back(std::move(next));
  }
  return out;
}

}  // namespace

IndexBasis random_index_basis(IndexBasis shape, std::uint64_t seed) {
  HS_CHECK(shape.rank <= shape.key_dim, "so many directions are orthogonal");
  std::uint64_t state = splitmix64(seed);
  shape.u.clear();
  for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
    std::vector<float>& u = shape.u.emplace_back();
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      const std::vector<Direction> directions = random_directions(shape.rank, shape.key_dim, state);
      for (std::size_t channel = 0; channel < static_cast<std::size_t>(shape.key_dim); ++channel) {
        for (const Direction& direction : directions) u.push_back(static_cast<float>(direction[channel]));
      }
    }
  }
  hash_index_basis(shape);
  return shape;
}

void hash_index_basis(IndexBasis& basis) {
  ContentHash hash;
  for (const std::int32_t number : {basis.layers, basis.kv_heads, basis.key_dim, basis.rank}) hash.add_number(number);
  for (const std::vector<float>& layer : basis.u) hash.add(std::as_bytes(std::span(layer)));
  basis.hash = hash.finish();
}

std::int32_t default_index_rank(std::int32_t key_dim, bool latent) {
  const std::int32_t wanted = latent ? kLatentRank : std::max(4, key_dim / 4 / 4 * 4);
  return std::min(wanted, key_dim);
}

Result<void> check_index_rank(std::int64_t rank, std::int32_t key_dim, std::string_view option) {
  if (rank >= 2 && rank <= key_dim && rank % 2 == 0) return {};
  return invalid_argument(concat(option, " is ", rank, "; this model's keys have ", key_dim,
                                 " channels, so that it must be an even number from 2 to ", key_dim),
                          std::string(option));
}

}  // namespace hotset::sparse
