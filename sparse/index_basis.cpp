#include "sparse/index_basis.h"

#include <algorithm>
#include <string>

#include "core/concat.h"

namespace hotset::sparse {
namespace {

constexpr std::int32_t kLatentRank = 64;

}  // namespace

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
