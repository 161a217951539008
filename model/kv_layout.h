// The KV cache that a model needs.
#pragma once

#include "core/kv_geometry.h"
#include "model/model_config.h"

namespace hotset::model {

[[nodiscard]] KvGeometry kv_geometry_of(const ModelConfig& config, KvDType dtype);

// Rows of that type with `metadata` for each layer that needs it: of index keys the layers with an indexer of their
// own, else all.
[[nodiscard]] KvLayout kv_layout_of(const ModelConfig& config, KvDType dtype, const MetadataGeometry& metadata);

}  // namespace hotset::model
