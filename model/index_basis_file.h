// The file of a basis of low-rank index keys: safetensors with one tensor "layers.N.index_basis" per layer,
// [KV heads, key channels, rank], F32. Channels are in half-split RoPE order, as cached.
#pragma once

#include <filesystem>

#include "core/kv_geometry.h"
#include "core/result.h"
#include "sparse/index_basis.h"

namespace hotset::model {

// `geometry`: of the model's rows; its layers, KV heads and key channels must be the file's, the rank is the file's
// own. Errors: kNotFound; kCorrupt for a damaged file; kInvalidArgument for one of another model, or whose directions
// are not finite, not of length 1 or not orthogonal. Each names the file and, where it is about one, the tensor.
Result<sparse::IndexBasis> read_index_basis(const std::filesystem::path& path, const KvGeometry& geometry);

// Whole or not at all: writes a file beside `path`, syncs it and renames it. The folder must exist, and what is at
// `path` already must be a regular file, no link: it is replaced. kUnavailable, naming the path and the reason, when it
// can't be written.
Result<void> write_index_basis(const std::filesystem::path& path, const sparse::IndexBasis& basis);

}  // namespace hotset::model
