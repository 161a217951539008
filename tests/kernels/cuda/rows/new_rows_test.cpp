// Against the launchers one by one and encode_row.
#include "kernels/cuda/new_rows.h"

#include <cmath>

#include "core/concat.h"
#include "core/kv_format.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"
#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/rows/page_tables.h"

namespace hotset::kernels::cuda {
namespace {

using NewRows = GpuTest;
using Layout = KvGeometry::Layout;
constexpr float kPoison = -55.0F;  // exact in bfloat16
constexpr float kFactor = 1.3F;

std::vector<float> frequencies(std::int32_t rotary_dim) {
  std::vector<float> out;
  for (std::int32_t i = 0; i < rotary_dim / 2; ++i) {
    out.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / rotary_dim)));
  }
  return out;
}

// Rows of a batch: decode (each row a sequence of its own) or a chunk of sequence 0.
struct Batch {
  std::vector<TableShape> shapes;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> batch_rows;

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
};

Batch decode_batch(Random& random, std::int64_t rows, std::int64_t most_tokens = 3000) {
  Batch out;
  for (std::int64_t row = 0; row < rows; ++row) {
    TableShape shape{.tokens = random.integer(1, most_tokens)};
    if (row % 3 == 1) {
      const std::int32_t block = 1 << random.integer(0, 6);
      shape.hot_blocks = static_cast<std::int32_t>(random.integer(1, 40));
      shape.block_tokens = block;
      shape.ring_tokens = static_cast<std::int32_t>(round_up(random.integer(65, 400), block));
    }
    out.shapes.push_back(shape);
    out.positions.push_back(row % 5 == 4 ? -1 : row == 0 ? 0 : shape.tokens - 1);
    out.batch_rows.push_back(static_cast<std::int32_t>(row));
  }
  return out;
}

Batch chunk_batch(std::int64_t first, std::int64_t rows) {
  Batch out;
  out.shapes = {{.tokens = 5}, {.tokens = first + rows}};
  for (std::int64_t row = 0; row < rows; ++row) {
    out.positions.push_back(first + row);
    out.batch_rows.push_back(1);
  }
  return out;
}

// Norm of each head where there is a weight, then the rotation of its channels [begin, begin + rotary_dim); in float32.
std::vector<float> norm_and_rope(const std::vector<float>& x, const Batch& batch, std::int32_t heads,
                                 std::int32_t head_dim, const std::vector<float>* weight, std::int32_t begin,
                                 std::int32_t rotary_dim) {
  const DeviceValues device(x, ActivationType::kF32);
  const auto positions = to_device(batch.positions);
  const auto inv_freq = to_device(frequencies(rotary_dim));
  if (weight != nullptr) {
    const auto weights = to_device(*weight);
    launch_rms_norm({device.data(), ActivationType::kF32, 0, weights.data(), device.data(), ActivationType::kF32, 0,
                     batch.rows() * heads, head_dim, 1e-5F},
                    nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }
  RopeDeviceParams rope;
  rope.x = device.data();
  rope.positions = positions.data();
  rope.inv_freq = inv_freq.data();
  rope.rows = batch.rows();
  rope.heads = heads;
  rope.head_dim = head_dim;
  rope.rotary_begin = begin;
  rope.rotary_dim = rotary_dim;
  rope.attention_factor = kFactor;
  launch_rope(rope, nullptr);
  return device.values();
}

void expect_pool(const std::vector<std::byte>& got, const std::vector<std::byte>& expected, std::int64_t row_bytes,
                 const std::string& what) {
  const auto different = std::mismatch(expected.begin(), expected.end(), got.begin());
  const auto at = different.first - expected.begin();
  ASSERT_TRUE(different.first == expected.end())
      << what << ": pool row " << at / row_bytes << ", byte " << at % row_bytes << " of " << row_bytes << " is "
      << static_cast<int>(*different.second) << ", expected " << static_cast<int>(*different.first);
}

// Rows of padding are poison in what was asked for.
std::vector<float> written(std::vector<float> rows, const Batch& batch) {
  const auto width = static_cast<std::ptrdiff_t>(rows.size() / batch.positions.size());
  for (std::size_t row = 0; row < batch.positions.size(); ++row) {
    if (batch.positions[row] < 0) {
      std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(row) * width, width, kPoison);
    }
  }
  return rows;
}

struct GroupedCase {
  std::int32_t heads, kv_heads, key_dim, value_dim, rotary_dim;
  bool norm;
};

void expect_grouped(const GroupedCase& c, KvDType dtype, const Batch& batch, ActivationType in_type, Random& random) {
  const KvGeometry geometry{1, c.kv_heads, c.key_dim, c.value_dim, Layout::kGrouped, dtype};
  const std::int64_t q_width = std::int64_t{c.heads} * c.key_dim;
  const std::int64_t k_width = geometry.key_elements();
  const std::int64_t v_width = geometry.value_elements();
  const std::int64_t stride = q_width + k_width + v_width + 16;
  const std::int64_t rows = batch.rows();
  std::vector<float> q = rounded(random.normals(rows * q_width), in_type);
  std::vector<float> k = rounded(random.normals(rows * k_width), in_type);
  std::vector<float> v = rounded(random.normals(rows * v_width), in_type);
  if (rows > 1) {
    std::fill_n(v.begin(), v_width, 0.0F);
    v[static_cast<std::size_t>(v_width)] = kInfinity;
    v[static_cast<std::size_t>(2 * v_width - 1)] = kNan;
  }
  const std::vector<float> q_weight = random.normals(c.key_dim);
  const std::vector<float> k_weight = random.normals(c.key_dim);
  std::vector<float> product;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const auto& [values, width] : {std::pair{&q, q_width}, std::pair{&k, k_width}, std::pair{&v, v_width}}) {
      product.insert(product.end(), values->begin() + row * width, values->begin() + (row + 1) * width);
    }
    product.insert(product.end(), 16, kPoison);
  }
  q = norm_and_rope(q, batch, c.heads, c.key_dim, c.norm ? &q_weight : nullptr, 0, c.rotary_dim);
  k = norm_and_rope(k, batch, c.kv_heads, c.key_dim, c.norm ? &k_weight : nullptr, 0, c.rotary_dim);

  const PageTables tables(batch.shapes, random);
  std::vector<std::byte> expected(static_cast<std::size_t>(tables.pool_rows() * geometry.row_bytes()), std::byte{0xcd});
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t position = batch.positions[static_cast<std::size_t>(row)];
    if (position < 0) continue;
    const auto batch_row = static_cast<std::size_t>(batch.batch_rows[static_cast<std::size_t>(row)]);
    encode_row(geometry, k.data() + row * k_width, v.data() + row * v_width,
               expected.data() + tables.new_row(batch_row, position) * geometry.row_bytes());
  }

  const auto positions = to_device(batch.positions);
  const auto batch_rows = to_device(batch.batch_rows);
  const auto inv_freq = to_device(frequencies(c.rotary_dim));
  const auto q_norm = to_device(q_weight);
  const auto k_norm = to_device(k_weight);
  const bool decode = batch.shapes.size() == batch.positions.size();
  for (const ActivationType out_type : {ActivationType::kF32, ActivationType::kBF16}) {
    for (const bool in_place : {false, true}) {
      if (in_place && out_type != in_type) continue;
      const std::string what =
          concat(rows, " rows, ", c.heads, "/", c.kv_heads, " heads, widths ", c.key_dim, "/", c.value_dim, ", rotary ",
                 c.rotary_dim, c.norm ? ", norm" : "", ", row type ", static_cast<int>(dtype), ", from ",
                 static_cast<int>(in_type), " to ", static_cast<int>(out_type), in_place ? ", in place" : "");
      const DeviceValues in(product, in_type);
      const DeviceValues q_out(std::vector<float>(static_cast<std::size_t>(rows * q_width), kPoison), out_type);
      const DeviceValues k_out(std::vector<float>(static_cast<std::size_t>(rows * k_width), kPoison),
                               ActivationType::kF32);
      DeviceBuffer<std::byte> pool(expected.size());
      pool.fill_bytes(0xcd);
      const std::int64_t bytes = in_type == ActivationType::kF32 ? 4 : 2;
      auto* const base = static_cast<std::byte*>(in.data());
      GroupedRowsParams params;
      params.geometry = geometry;
      params.targets = {tables.rows(), decode ? nullptr : batch_rows.data(), positions.data(), pool.data()};
      params.rotation = {inv_freq.data(), c.rotary_dim, kFactor};
      params.q = base;
      params.k = base + q_width * bytes;
      params.v = base + (q_width + k_width) * bytes;
      params.q_stride = params.k_stride = params.v_stride = stride;
      params.in_type = in_type;
      params.q_norm = c.norm ? q_norm.data() : nullptr;
      params.k_norm = c.norm ? k_norm.data() : nullptr;
      params.epsilon = 1e-5F;
      params.q_out = in_place ? base : q_out.data();
      params.q_out_type = out_type;
      params.q_out_stride = in_place ? stride : q_width;
      params.k_out = in_place ? nullptr : static_cast<float*>(k_out.data());
      params.k_out_stride = k_width;
      params.rows = rows;
      params.heads = c.heads;
      launch_grouped_rows(params, nullptr);
      ASSERT_NO_FATAL_FAILURE(expect_pool(to_host(pool), expected, geometry.row_bytes(), what));
      if (!in_place) {
        ASSERT_TRUE(same_bits(q_out.values(), written(rounded(q, out_type), batch))) << what << ", q";
        ASSERT_TRUE(same_bits(k_out.values(), written(k, batch))) << what << ", k";
        ASSERT_TRUE(same_bits(in.values(), product)) << what << ": the input has changed";
        continue;
      }
      std::vector<float> changed = product;
      const std::vector<float> q_rounded = rounded(q, out_type);
      for (std::int64_t row = 0; row < rows; ++row) {
        if (batch.positions[static_cast<std::size_t>(row)] < 0) continue;
        std::copy_n(q_rounded.begin() + row * q_width, q_width, changed.begin() + row * stride);
      }
      ASSERT_TRUE(same_bits(in.values(), changed)) << what;
    }
  }
}

TEST_F(NewRows, GroupedAreTheLaunchersOneByOne) {
  Random random;
  constexpr GroupedCase kCases[] = {
      {32, 8, 128, 128, 128, false}, {6, 2, 64, 64, 64, true},   {4, 1, 80, 96, 40, false},
      {3, 3, 16, 16, 16, true},      {8, 2, 256, 256, 64, true}, {5, 1, 96, 96, 20, true},
      {40, 8, 128, 128, 128, true},  {2, 1, 304, 144, 0, false}, {2, 2, 48, 128, 6, true}};
  for (const GroupedCase& c : kCases) {
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
      for (const ActivationType in_type : {ActivationType::kF32, ActivationType::kBF16}) {
        ASSERT_NO_FATAL_FAILURE(expect_grouped(c, dtype, decode_batch(random, 1), in_type, random));
        ASSERT_NO_FATAL_FAILURE(expect_grouped(c, dtype, decode_batch(random, 17), in_type, random));
        ASSERT_NO_FATAL_FAILURE(expect_grouped(c, dtype, chunk_batch(60, 70), in_type, random));
      }
    }
  }
}

// So many rows that the lanes take several heads each.
TEST_F(NewRows, ManyRows) {
  Random random;
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_grouped({16, 3, 128, 128, 128, true}, dtype, chunk_batch(1000, 1100), ActivationType::kF32, random));
    ASSERT_NO_FATAL_FAILURE(expect_grouped({16, 3, 64, 80, 32, false}, dtype, decode_batch(random, 2200, 100),
                                           ActivationType::kBF16, random));
  }
}

void expect_latent(std::int32_t key_dim, std::int32_t value_dim, std::int32_t rotary_dim, KvDType dtype,
                   const Batch& batch, ActivationType in_type, Random& random) {
  const KvGeometry geometry{1, 1, key_dim, value_dim, Layout::kLatent, dtype};
  const std::int64_t rows = batch.rows();
  const std::int32_t rope = key_dim - value_dim;
  const std::int64_t stride = key_dim + 8;
  const std::vector<float> weight = random.normals(value_dim);
  std::vector<float> latent = rounded(random.normals(rows * value_dim), in_type);
  std::vector<float> rope_part = rounded(random.normals(rows * rope), in_type);
  if (rows > 1) {
    std::fill_n(latent.begin(), value_dim, 0.0F);
    rope_part[static_cast<std::size_t>(rope)] = kNan;
  }
  std::vector<float> in;
  for (std::int64_t row = 0; row < rows; ++row) {
    in.insert(in.end(), latent.begin() + row * value_dim, latent.begin() + (row + 1) * value_dim);
    in.insert(in.end(), rope_part.begin() + row * rope, rope_part.begin() + (row + 1) * rope);
    in.insert(in.end(), 8, kPoison);
  }
  latent = norm_and_rope(latent, batch, 1, value_dim, &weight, 0, 0);
  rope_part = norm_and_rope(rope_part, batch, 1, rope, nullptr, 0, rotary_dim);
  const PageTables tables(batch.shapes, random);
  std::vector<std::byte> expected(static_cast<std::size_t>(tables.pool_rows() * geometry.row_bytes()), std::byte{0xcd});
  std::vector<float> whole;
  for (std::int64_t row = 0; row < rows; ++row) {
    whole.insert(whole.end(), latent.begin() + row * value_dim, latent.begin() + (row + 1) * value_dim);
    whole.insert(whole.end(), rope_part.begin() + row * rope, rope_part.begin() + (row + 1) * rope);
    const std::int64_t position = batch.positions[static_cast<std::size_t>(row)];
    if (position < 0) continue;
    const auto batch_row = static_cast<std::size_t>(batch.batch_rows[static_cast<std::size_t>(row)]);
    encode_row(geometry, whole.data() + row * key_dim, nullptr,
               expected.data() + tables.new_row(batch_row, position) * geometry.row_bytes());
  }
  const auto positions = to_device(batch.positions);
  const auto batch_rows = to_device(batch.batch_rows);
  const auto inv_freq = to_device(frequencies(rotary_dim));
  const auto norm = to_device(weight);
  const DeviceValues device_in(in, in_type);
  for (const bool with_out : {false, true}) {
    const DeviceValues out(std::vector<float>(static_cast<std::size_t>(rows * key_dim), kPoison), ActivationType::kF32);
    DeviceBuffer<std::byte> pool(expected.size());
    pool.fill_bytes(0xcd);
    LatentRowsParams params;
    params.geometry = geometry;
    params.targets = {tables.rows(), batch_rows.data(), positions.data(), pool.data()};
    params.rotation = {inv_freq.data(), rotary_dim, kFactor};
    params.in = device_in.data();
    params.in_stride = stride;
    params.in_type = in_type;
    params.norm = norm.data();
    params.epsilon = 1e-5F;
    params.out = with_out ? static_cast<float*>(out.data()) : nullptr;
    params.out_stride = key_dim;
    params.rows = rows;
    launch_latent_rows(params, nullptr);
    const std::string what = concat(rows, " rows of ", key_dim, "/", value_dim, ", rotary ", rotary_dim, ", row type ",
                                    static_cast<int>(dtype), ", from ", static_cast<int>(in_type));
    ASSERT_NO_FATAL_FAILURE(expect_pool(to_host(pool), expected, geometry.row_bytes(), what));
    const std::vector<float> nothing(whole.size(), kPoison);
    ASSERT_TRUE(same_bits(out.values(), with_out ? written(whole, batch) : nothing)) << what;
  }
}

TEST_F(NewRows, LatentAreTheLaunchersOneByOne) {
  Random random;
  for (const auto& [key_dim, value_dim, rotary_dim] :
       {std::tuple{576, 512, 64}, std::tuple{48, 32, 16}, std::tuple{304, 272, 20}, std::tuple{192, 160, 32}}) {
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
      for (const ActivationType in_type : {ActivationType::kF32, ActivationType::kBF16}) {
        for (const std::int64_t rows : {1, 33}) {
          ASSERT_NO_FATAL_FAILURE(
              expect_latent(key_dim, value_dim, rotary_dim, dtype, decode_batch(random, rows), in_type, random));
        }
        ASSERT_NO_FATAL_FAILURE(
            expect_latent(key_dim, value_dim, rotary_dim, dtype, chunk_batch(60, 200), in_type, random));
      }
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
