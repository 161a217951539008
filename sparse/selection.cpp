#include "sparse/selection.h"

#include "core/check.h"

namespace hotset::sparse {

void SelectionAlgorithm::append(LayerId /*layer*/, const MetadataRows& rows, kernels::Backend& backend) const {
  const MetadataGeometry geometry = metadata();
  HS_CHECK(geometry.kind != MetadataGeometry::Kind::kNone, "an algorithm without metadata keeps none");
  kernels::StoreMetadataParams params;
  params.geometry = geometry;
  params.keys = rows.keys;
  params.stride = rows.stride;
  params.pages = rows.pages.data();
  params.offsets = rows.offsets.data();
  params.rows = static_cast<std::int64_t>(rows.pages.size());
  backend.store_metadata(params);
}

}  // namespace hotset::sparse
