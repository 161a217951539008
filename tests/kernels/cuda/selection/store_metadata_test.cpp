#include "kernels/cuda/selection/store_metadata.h"

#include <numeric>

#include "core/half.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/selection/device_rows.h"

namespace hotset::kernels::cuda {
namespace {

using StoreMetadata = GpuTest;

// Tokens 0 ... count - 1 in calls of `step` rows, page p at place 2 p + 1 of the pool, a padded row after each call.
// Returns the pool.
std::vector<std::byte> stored(const MetadataGeometry& geometry, const std::vector<float>& keys,
                              const std::vector<float>& basis, std::int64_t step, bool bf16) {
  const std::int64_t width = std::int64_t{geometry.kv_heads} * geometry.dim;
  const std::int64_t count = static_cast<std::int64_t>(keys.size()) / width;
  const std::vector<std::byte> dirt(static_cast<std::size_t>((2 * pages_for_tokens(count) + 1) * geometry.page_bytes()),
                                    std::byte{0xa5});
  const DeviceBuffer<std::byte> pool = to_device(dirt);
  const auto device_keys = to_device(keys);
  std::vector<std::uint16_t> halves;
  for (const float key : keys) halves.push_back(f32_to_bf16(key));
  const auto device_halves = to_device(halves);
  const auto device_basis = to_device(basis);
  std::vector<std::int32_t> table;
  for (std::int64_t page = 0; page <= pages_for_tokens(count); ++page) {
    table.push_back(static_cast<std::int32_t>(2 * page + 1));
  }
  const auto device_table = to_device(table);
  for (std::int64_t token = 0; token < count; token += step) {
    const std::int64_t rows = std::min(step, count - token);
    std::vector<std::int64_t> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), token);
    positions.push_back(-1);
    const auto device_positions = to_device(positions);
    StoreMetadataDeviceParams params;
    params.geometry = geometry;
    params.keys =
        bf16 ? static_cast<const void*>(device_halves.data() + token * width) : device_keys.data() + token * width;
    params.keys_are_bf16 = bf16;
    params.stride = width;
    params.basis = device_basis.data();
    params.target = {pool.data(), device_table.data(), 0, device_positions.data()};
    params.rows = rows + 1;
    launch_store_metadata(params, nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }
  return to_host(pool, dirt.size());
}

// The device's bytes are the CPU's, and the pages between hold what they held.
void expect_cpu_bytes(const MetadataGeometry& geometry, const std::vector<float>& keys, const std::vector<float>& basis,
                      std::int64_t step, bool bf16) {
  std::vector<float> rounded = keys;
  if (bf16) {
    for (float& key : rounded) key = bf16_to_f32(f32_to_bf16(key));
  }
  SelectionBed bed(geometry, basis, 0xa5);
  bed.append(*make_cpu_backend(1), rounded);
  const std::vector<std::byte> pool = stored(geometry, keys, basis, step, bf16);
  const auto bytes = static_cast<std::size_t>(geometry.page_bytes());
  for (std::size_t page = 0; page * bytes < pool.size(); ++page) {
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::byte expected = page % 2 == 0 ? std::byte{0xa5} : bed.pages()[page / 2][i];
      ASSERT_EQ(pool[page * bytes + i], expected)
          << "kind " << static_cast<int>(geometry.kind) << " dtype " << static_cast<int>(geometry.dtype) << " dim "
          << geometry.dim << " rank " << geometry.rank << " step " << step << " bf16 " << bf16 << ": page " << page
          << ", byte " << i << " of " << bytes;
    }
  }
}

std::vector<float> keys_with_edges(std::int64_t tokens, std::int64_t width, Random& random) {
  std::vector<float> keys = random.normals(tokens * width);
  const auto fill = [&](std::int64_t token, float value) {
    std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(token * width), width, value);
  };
  fill(1, 0.0F);
  fill(2, 1e-38F);
  fill(3, 1e30F);
  keys[static_cast<std::size_t>(4 * width + 1)] = kNan;
  keys[static_cast<std::size_t>(5 * width + 2)] = kInfinity;
  for (std::int64_t c = 0; c < width; ++c) keys[static_cast<std::size_t>(6 * width + c)] *= 1e-6F;
  return keys;
}

TEST_F(StoreMetadata, IndexKeysAreTheCpusBytes) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8})
    for (const int dim : {16, 128, 208}) {
      const std::vector<float> keys = keys_with_edges(130, dim, random);
      for (const std::int64_t step : {1, 50, 130})
        for (const bool bf16 : {false, true}) {
          ASSERT_NO_FATAL_FAILURE(expect_cpu_bytes(index_geometry(dim, dtype), keys, {}, step, bf16));
        }
    }
}

TEST_F(StoreMetadata, LowRankKeysAreTheCpusBytes) {
  Random random;
  for (const auto& [kv_heads, dim, rank] : {std::tuple{8, 128, 32}, std::tuple{2, 64, 16}, std::tuple{1, 80, 64},
                                            std::tuple{3, 48, 6}, std::tuple{1, 256, 200}, std::tuple{1, 576, 64}}) {
    const std::vector<float> basis = random.normals(std::int64_t{kv_heads} * dim * rank);
    const std::vector<float> keys = keys_with_edges(130, std::int64_t{kv_heads} * dim, random);
    for (const bool bf16 : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(expect_cpu_bytes(low_rank_geometry(kv_heads, dim, rank), keys, basis, 50, bf16));
    }
  }
}

TEST_F(StoreMetadata, BoundsAreTheCpusBytes) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16})
    for (const int block : {1, 2, 8, 32, 64})
      for (const auto& [kv_heads, dim] : {std::pair{2, 80}, std::pair{1, 576}}) {
        const std::int64_t width = std::int64_t{kv_heads} * dim;
        std::vector<float> keys = random.normals(130 * width);
        keys[static_cast<std::size_t>(3 * width + 7)] = kNan;
        keys[0] = kNan;
        for (const std::int64_t step : {1, 50, 130}) {
          ASSERT_NO_FATAL_FAILURE(
              expect_cpu_bytes(bounds_geometry(kv_heads, dim, block, dtype), keys, {}, step, false));
        }
      }
}

}  // namespace
}  // namespace hotset::kernels::cuda
