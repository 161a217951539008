// What tells one model from another: part of the cache domain and of the names of files in the cache folder.
#pragma once

#include "core/content_hash.h"
#include "model/checkpoint.h"

namespace hotset::model {

// XXH3-128 over the configuration that turns weights into cached rows (RoPE, norms, heads, experts, indexer) and over
// names, shapes, types and contents of every tensor that the model uses. The same weights in another file format or
// type are another model.
// Checkpoints of up to 1 GiB are hashed whole, at memory speed (100 MB in some 20 ms once the file is in memory).
// Larger ones would take longer to read than to map, so of each tensor beyond its equal share of 1 GiB (at least 256
// KiB) only 16 pieces, spread evenly from its first byte to its last, are hashed: a change that falls between the
// pieces goes unseen. A retrained or requantised model changes everywhere and is seen.
[[nodiscard]] Hash128 fingerprint(const Checkpoint& checkpoint);

}  // namespace hotset::model
