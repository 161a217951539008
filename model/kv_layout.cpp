#include "model/kv_layout.h"

namespace hotset::model {

KvGeometry kv_geometry_of(const ModelConfig& config, KvDType dtype) {
  if (config.latent) {
    return {.layers = config.layers,
            .kv_heads = 1,
            .key_dim = config.latent->kv_rank + config.latent->rope_dim,
            .value_dim = config.latent->kv_rank,
            .layout = KvGeometry::Layout::kLatent,
            .dtype = dtype};
  }
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .key_dim = config.head_dim,
          .value_dim = config.head_dim,
          .dtype = dtype};
}

KvLayout kv_layout_of(const ModelConfig& config, KvDType dtype, const MetadataGeometry& metadata) {
  KvLayout layout = KvLayout::uniform(kv_geometry_of(config, dtype), metadata);
  if (metadata.kind != MetadataGeometry::Kind::kIndexKeys || !config.indexer) return layout;
  layout.metadata_layers = 0;
  for (std::size_t layer = 0; layer < layout.metadata_of_layer.size(); ++layer) {
    layout.metadata_of_layer[layer] = config.indexer->full_layer[layer] ? layout.metadata_layers++ : -1;
  }
  return layout;
}

}  // namespace hotset::model
