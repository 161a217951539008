#include "kernels/cuda/load_keys.h"

#include "core/half.h"
#include "core/kv_format.h"
#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/rows/page_tables.h"

namespace hotset::kernels::cuda {
namespace {

using LoadKeys = GpuTest;
using Layout = KvGeometry::Layout;

void expect_keys(const KvGeometry& geometry, std::int64_t first, std::int64_t last, Random& random) {
  const std::int64_t tokens = std::max<std::int64_t>(last, 1);
  const std::int64_t pages = pages_for_tokens(tokens) + 2;
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random.engine());
  std::vector<std::byte> pool(static_cast<std::size_t>(pages * geometry.page_bytes()), std::byte{0xff});
  const std::int64_t width = geometry.key_elements();
  std::vector<float> keys(static_cast<std::size_t>((last - first) * width));
  for (std::int64_t position = first; position < last; ++position) {
    std::vector<float> key = random.normals(width);
    if (position % 7 == 3) key[0] = kNan;
    if (position % 11 == 5) std::ranges::fill(key, 0.0F);
    const std::vector<float> value = random.normals(geometry.value_elements());
    const std::int64_t page = table[static_cast<std::size_t>(position / kPageTokens)];
    std::byte* const row = pool.data() + (page * kPageTokens + position % kPageTokens) * geometry.row_bytes();
    encode_row(geometry, key.data(), value.data(), row);
    decode_key(geometry, row, keys.data() + (position - first) * width);
  }
  const auto device_pool = to_device(pool);
  const auto device_table = to_device(table);
  for (const ActivationType type : {ActivationType::kF32, ActivationType::kBF16}) {
    const std::int64_t stride = width + 8;
    const DeviceValues out(std::vector<float>(static_cast<std::size_t>((last - first) * stride), -55.0F), type);
    launch_load_keys({.geometry = geometry,
                      .pool = device_pool.data(),
                      .pages = device_table.data(),
                      .first = first,
                      .last = last,
                      .out = out.data(),
                      .out_type = type,
                      .out_stride = stride},
                     nullptr);
    const std::vector<float> got = out.values();
    const std::vector<float> expected = rounded(keys, type);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const float wanted =
          at % stride < width ? expected[static_cast<std::size_t>(at / stride * width + at % stride)] : -55.0F;
      ASSERT_TRUE(got[i] == wanted || (std::isnan(got[i]) && std::isnan(wanted)))
          << "layout " << static_cast<int>(geometry.layout) << ", type " << static_cast<int>(geometry.dtype) << " to "
          << static_cast<int>(type) << ", widths " << geometry.key_dim << "/" << geometry.value_dim << ", rows "
          << first << " to " << last << ": row " << at / stride << ", channel " << at % stride << " is " << got[i]
          << ", expected " << wanted;
    }
  }
}

TEST_F(LoadKeys, AsDecodeKeyGivesThem) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    for (const auto& [first, last] : {std::pair{0, 1}, std::pair{0, 130}, std::pair{63, 65}, std::pair{100, 100}}) {
      for (const auto& [key, value] : {std::pair{576, 512}, std::pair{48, 32}, std::pair{304, 272}}) {
        ASSERT_NO_FATAL_FAILURE(expect_keys({1, 1, key, value, Layout::kLatent, dtype}, first, last, random));
      }
      for (const auto& [heads, dim] : {std::pair{8, 128}, std::pair{3, 80}, std::pair{2, 208}, std::pair{1, 16}}) {
        ASSERT_NO_FATAL_FAILURE(expect_keys({1, heads, dim, dim, Layout::kGrouped, dtype}, first, last, random));
      }
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
