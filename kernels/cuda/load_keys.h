// Keys of a sequence's rows as numbers, by its page table: LoadKeysParams of kernels/backend.h on the device. Latent
// rows give the latent and the rope part: what the expanded MLA prefill multiplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's. float32 results are those of decode_key (core/kv_format.h), bit for bit; bfloat16 ones
// are those rounded to nearest even, so that bf16 rows come out as they are.
struct DeviceLoadKeysParams {
  KvGeometry geometry;                  // channels are multiples of 16
  const std::byte* pool = nullptr;      // 16-byte aligned; page p lies at pool + p * geometry.page_bytes()
  const std::int32_t* pages = nullptr;  // page of rows [64 i, 64 i + 64) at entry i; null: page i itself
  std::int64_t first = 0;               // rows [first, last)
  std::int64_t last = 0;
  void* out = nullptr;  // [last - first, kv_heads * key_dim], 16-byte aligned
  ActivationType out_type = ActivationType::kBF16;
  std::int64_t out_stride = 0;  // in elements, 0: kv_heads * key_dim; a multiple of 8
};

void launch_load_keys(const DeviceLoadKeysParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
