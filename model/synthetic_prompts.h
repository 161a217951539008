// Seeded random numbers in the place of a prompt's queries, keys and values, for measurements: as a layer's products
// that its attention finishes (UnfinishedRows), with norms and rotations that change nothing. The same rows for every
// layer and chunk. Thread: the stream that runs the steps.
#pragma once

#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/device.h"
#include "kernels/dense_backend.h"
#include "model/attention.h"

namespace hotset::model {

class SyntheticPrompts {
 public:
  // For chunks of at most `rows` rows of a model of `heads` query heads. Its memory is the backend's.
  SyntheticPrompts(const KvLayout& layout, std::int32_t heads, std::int64_t rows, kernels::DenseBackend& backend,
                   const kernels::cuda::DeviceStream& stream);

  [[nodiscard]] LayerAttention layer(LayerId layer) const;

 private:
  KvLayout layout_;
  std::int32_t heads_;
  std::int64_t width_;
  kernels::Array<float> rows_;          // [rows, width]
  kernels::Array<float> ones_, zeros_;  // [widest norm]
};

}  // namespace hotset::model
