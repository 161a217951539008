// The fixed directions of low-rank index keys: a cached key leaves its projection on them (docs/architecture.md,
// section 6). One basis per model, made once from a calibration text (sparse/second_moment.h) and kept in a file
// (model/index_basis_file.h). Plain values, immutable once made, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/content_hash.h"
#include "core/result.h"

namespace hotset::sparse {

struct IndexBasis {
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;  // latent rows: 1
  std::int32_t key_dim = 0;   // channels of one key as cached, after RoPE; latent rows: the latent and the rope part
  std::int32_t rank = 0;      // r: even, 2 ... key_dim
  // [layers], each [kv_heads, key_dim, rank]: column j of a head is its direction j, of length 1 and orthogonal to the
  // others, by falling share of the second moment.
  std::vector<std::vector<float>> u;
  // XXH3-128 of the shape and the numbers, part of the cache domain. Set by hash_index_basis().
  Hash128 hash{};

  [[nodiscard]] std::span<const float> of(std::int32_t layer) const { return u[static_cast<std::size_t>(layer)]; }
};

// Sets `hash` from the other members. Equal bases have equal hashes on every machine of the same byte order.
void hash_index_basis(IndexBasis& basis);

// Seeded random directions, orthonormal; for measurements with dummy weights. `shape`: all but `u` and `hash`, which
// are set. rank <= key_dim.
[[nodiscard]] IndexBasis random_index_basis(IndexBasis shape, std::uint64_t seed);

// Good without asking: 64 for latent rows; else a quarter of the head's channels (16 of 64, 32 of 128), rounded down to
// a multiple of 4, at least 4. Never more than `key_dim`.
[[nodiscard]] std::int32_t default_index_rank(std::int32_t key_dim, bool latent);

// A rank is even (two 4-bit codes to a byte), at least 2 and at most key_dim. The error's `param` is `option`, the
// option that the rank came from ("--rank").
Result<void> check_index_rank(std::int64_t rank, std::int32_t key_dim, std::string_view option);

}  // namespace hotset::sparse
