// Against the launchers one by one and encode_row.
#include "kernels/cuda/new_rows.h"

#include <cmath>

#include "core/concat.h"
#include "core/kv_format.h"
#include "core/kv_metadata_format.h"
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
  [[nodiscard]] bool decodes() const { return shapes.size() == positions.size(); }
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

// Pages of a batch's metadata, in shuffled places of a dirty pool.
class MetadataPages {
 public:
  MetadataPages(const MetadataGeometry& geometry, const Batch& batch, Random& random)
      : geometry_(geometry), batch_(batch), positions_(batch.positions) {
    if (geometry.kind == MetadataGeometry::Kind::kNone) return;
    for (const TableShape& shape : batch.shapes) stride_ = std::max(stride_, pages_for_tokens(shape.tokens));
    pages_.resize(batch.shapes.size() * static_cast<std::size_t>(stride_));
    std::iota(pages_.begin(), pages_.end(), 1);
    std::shuffle(pages_.begin(), pages_.end(), random.engine());
    // Some sequences keep none.
    for (std::size_t row = 0; batch.decodes() && row < positions_.size(); ++row) {
      if (row % 7 == 3) positions_[row] = -1;
    }
    dirt_.assign((pages_.size() + 2) * static_cast<std::size_t>(geometry.page_bytes()), std::byte{0xa5});
    if (geometry.kind == MetadataGeometry::Kind::kLowRankKeys) {
      basis_ = random.normals(std::int64_t{geometry.kv_heads} * geometry.dim * geometry.rank);
    }
    device_pages_ = to_device(pages_);
    device_positions_ = to_device(positions_);
    device_basis_ = to_device(basis_);
  }

  // To be written to `pool`.
  [[nodiscard]] NewRowMetadata target(const DeviceBuffer<std::byte>& pool) const {
    const bool decodes = batch_.decodes();
    return {
        geometry_,
        {pool.data(), device_pages_.data() + (decodes ? 0 : stride_), decodes ? stride_ : 0, device_positions_.data()},
        device_basis_.data()};
  }
  [[nodiscard]] const std::vector<std::byte>& dirt() const { return dirt_; }

  // The pool when keys [rows, kv_heads * dim] have been kept.
  [[nodiscard]] std::vector<std::byte> with(const std::vector<float>& keys) const {
    std::vector<std::byte> pool = dirt_;
    if (geometry_.kind == MetadataGeometry::Kind::kNone) return pool;
    const std::int64_t width = std::int64_t{geometry_.kv_heads} * geometry_.dim;
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      const std::int64_t position = positions_[row];
      if (position < 0) continue;
      const std::int64_t entry = batch_.batch_rows[row] * stride_ + position / kPageTokens;
      std::byte* const page = pool.data() + pages_[static_cast<std::size_t>(entry)] * geometry_.page_bytes();
      keep(keys.data() + static_cast<std::int64_t>(row) * width, page, position % kPageTokens);
    }
    return pool;
  }

 private:
  void keep(const float* key, std::byte* page, std::int64_t offset) const {
    switch (geometry_.kind) {
      case MetadataGeometry::Kind::kNone: return;
      case MetadataGeometry::Kind::kIndexKeys: return encode_index_key(geometry_, key, page, offset);
      case MetadataGeometry::Kind::kBlockBounds: return widen_bounds(geometry_, key, page, offset);
      case MetadataGeometry::Kind::kLowRankKeys: break;
    }
    for (std::int64_t head = 0; head < geometry_.kv_heads; ++head) {
      std::vector<float> x(static_cast<std::size_t>(geometry_.rank), 0.0F);
      for (std::int64_t c = 0; c < geometry_.dim; ++c) {
        const float* const basis = basis_.data() + (head * geometry_.dim + c) * geometry_.rank;
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::fma(key[head * geometry_.dim + c], basis[i], x[i]);
      }
      encode_low_rank_key(geometry_, head, x.data(), page, offset);
    }
  }

  MetadataGeometry geometry_;
  const Batch& batch_;
  std::vector<std::int64_t> positions_;
  std::int64_t stride_ = 0;
  std::vector<std::int32_t> pages_;
  std::vector<float> basis_;
  std::vector<std::byte> dirt_;
  DeviceBuffer<std::int32_t> device_pages_{1};
  DeviceBuffer<std::int64_t> device_positions_{1};
  DeviceBuffer<float> device_basis_{1};
};

struct GroupedCase {
  std::int32_t heads, kv_heads, key_dim, value_dim, rotary_dim;
  bool norm;
  std::int32_t rank, block_tokens;  // one of them: the metadata; both 0: none
};

MetadataGeometry metadata_of(const GroupedCase& c, KvDType dtype) {
  MetadataGeometry out{.kv_heads = c.kv_heads, .dim = c.key_dim};
  if (c.rank > 0) {
    out.kind = MetadataGeometry::Kind::kLowRankKeys;
    out.rank = c.rank;
  } else if (c.block_tokens > 0) {
    out.kind = MetadataGeometry::Kind::kBlockBounds;
    out.block_tokens = c.block_tokens;
    out.dtype = dtype == KvDType::kF32 ? KvDType::kF32 : KvDType::kBF16;
  }
  return out;
}

NewRowTargets target_of(const Batch& batch, const PageTables& tables, const DeviceBuffer<std::int64_t>& positions,
                        const DeviceBuffer<std::byte>& pool) {
  const bool decodes = batch.decodes();
  return {tables.rows() + (decodes ? 0 : 1), decodes ? 1 : 0, positions.data(), pool.data()};
}

void expect_grouped(const GroupedCase& c, KvDType dtype, const Batch& batch, Random& random) {
  const KvGeometry geometry{1, c.kv_heads, c.key_dim, c.value_dim, Layout::kGrouped, dtype};
  const std::int64_t q_width = std::int64_t{c.heads} * c.key_dim;
  const std::int64_t k_width = geometry.key_elements();
  const std::int64_t v_width = geometry.value_elements();
  const std::int64_t stride = q_width + k_width + v_width + 16;
  const std::int64_t rows = batch.rows();
  std::vector<float> q = random.normals(rows * q_width);
  std::vector<float> k = random.normals(rows * k_width);
  std::vector<float> v = random.normals(rows * v_width);
  if (rows > 1) {
    std::fill_n(v.begin(), v_width, 0.0F);
    v[static_cast<std::size_t>(v_width)] = kInfinity;
    v[static_cast<std::size_t>(2 * v_width - 1)] = kNan;
    k[static_cast<std::size_t>(k_width + 3)] = kNan;
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
  const auto inv_freq = to_device(frequencies(c.rotary_dim));
  const auto q_norm = to_device(q_weight);
  const auto k_norm = to_device(k_weight);
  const MetadataPages metadata(metadata_of(c, dtype), batch, random);
  const std::vector<std::byte> expected_metadata = metadata.with(k);
  for (const bool in_place : {false, true}) {
    const std::string what =
        concat(rows, " rows, ", c.heads, "/", c.kv_heads, " heads, widths ", c.key_dim, "/", c.value_dim, ", rotary ",
               c.rotary_dim, c.norm ? ", norm" : "", ", row type ", static_cast<int>(dtype),
               in_place ? ", in place" : "", ", rank ", c.rank, ", blocks of ", c.block_tokens);
    const auto in = to_device(product);
    const auto q_out = to_device(std::vector<float>(static_cast<std::size_t>(rows * q_width), kPoison));
    const auto k_out = to_device(std::vector<float>(static_cast<std::size_t>(rows * k_width), kPoison));
    DeviceBuffer<std::byte> pool(expected.size());
    pool.fill_bytes(0xcd);
    const auto metadata_pool = to_device(metadata.dirt());
    GroupedRowsParams params;
    params.geometry = geometry;
    params.targets = target_of(batch, tables, positions, pool);
    params.rotation = {inv_freq.data(), c.rotary_dim, kFactor};
    params.q = in.data();
    params.k = in.data() + q_width;
    params.v = in.data() + q_width + k_width;
    params.q_stride = params.k_stride = params.v_stride = stride;
    params.q_norm = c.norm ? q_norm.data() : nullptr;
    params.k_norm = c.norm ? k_norm.data() : nullptr;
    params.epsilon = 1e-5F;
    params.q_out = in_place ? in.data() : q_out.data();
    params.q_out_stride = in_place ? stride : q_width;
    params.k_out = in_place ? in.data() + q_width : k_out.data();
    params.k_out_stride = in_place ? stride : k_width;
    params.metadata = metadata.target(metadata_pool);
    params.rows = rows;
    params.heads = c.heads;
    params.follows_product = in_place;
    launch_grouped_rows(params, nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_pool(to_host(pool), expected, geometry.row_bytes(), what));
    if (!metadata.dirt().empty()) {
      ASSERT_NO_FATAL_FAILURE(expect_pool(to_host(metadata_pool), expected_metadata, metadata_of(c, dtype).page_bytes(),
                                          "metadata, " + what));
    }
    if (!in_place) {
      ASSERT_TRUE(same_bits(to_host(q_out), written(q, batch))) << what << ", q";
      ASSERT_TRUE(same_bits(to_host(k_out), written(k, batch))) << what << ", k";
      ASSERT_TRUE(same_bits(to_host(in), product)) << what << ": the input has changed";
      continue;
    }
    std::vector<float> changed = product;
    for (std::int64_t row = 0; row < rows; ++row) {
      if (batch.positions[static_cast<std::size_t>(row)] < 0) continue;
      std::copy_n(q.begin() + row * q_width, q_width, changed.begin() + row * stride);
      std::copy_n(k.begin() + row * k_width, k_width, changed.begin() + row * stride + q_width);
    }
    ASSERT_TRUE(same_bits(to_host(in), changed)) << what;
  }
}

TEST_F(NewRows, GroupedAreTheLaunchersOneByOne) {
  Random random;
  constexpr GroupedCase kCases[] = {
      {32, 8, 128, 128, 128, false, 32, 0}, {6, 2, 64, 64, 64, true, 0, 32},    {4, 1, 80, 96, 40, false, 14, 0},
      {3, 3, 16, 16, 16, true, 0, 8},       {8, 2, 256, 256, 64, true, 200, 0}, {5, 1, 96, 96, 20, true, 0, 64},
      {40, 8, 128, 128, 128, true, 0, 0},   {2, 1, 304, 144, 0, false, 0, 16},  {2, 2, 48, 128, 6, true, 48, 0}};
  for (const GroupedCase& c : kCases) {
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
      ASSERT_NO_FATAL_FAILURE(expect_grouped(c, dtype, decode_batch(random, 1), random));
      ASSERT_NO_FATAL_FAILURE(expect_grouped(c, dtype, decode_batch(random, 17), random));
      ASSERT_NO_FATAL_FAILURE(expect_grouped(c, dtype, chunk_batch(60, 70), random));
    }
  }
}

// So many rows that the lanes take several heads each.
TEST_F(NewRows, ManyRows) {
  Random random;
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_grouped({16, 3, 128, 128, 128, true, 32, 0}, dtype, chunk_batch(1000, 1100), random));
    ASSERT_NO_FATAL_FAILURE(
        expect_grouped({16, 3, 64, 80, 32, false, 6, 0}, dtype, decode_batch(random, 2200, 100), random));
    // Keys of several rows in a block, as many as its shared memory holds.
    ASSERT_NO_FATAL_FAILURE(expect_grouped({8, 8, 256, 256, 256, true, 32, 0}, dtype, chunk_batch(0, 1900), random));
  }
}

// Index keys after their LayerNorm and RoPE.
std::vector<float> index_keys_of(const std::vector<float>& in, const Batch& batch, std::int32_t dim,
                                 const std::vector<float>& weight, const std::vector<float>& bias,
                                 std::int32_t rotary_dim) {
  const DeviceValues device(in, ActivationType::kF32);
  const auto weights = to_device(weight);
  const auto biases = to_device(bias);
  launch_layer_norm({device.data(), ActivationType::kF32, 0, weights.data(), biases.data(), device.data(),
                     ActivationType::kF32, 0, batch.rows(), dim, 1e-6F},
                    nullptr);
  return norm_and_rope(device.values(), batch, 1, dim, nullptr, 0, rotary_dim);
}

enum class LatentMetadata { kNone, kIndexKeys, kLowRankKeys, kWideLowRankKeys, kBounds };

MetadataGeometry metadata_of(LatentMetadata kind, std::int32_t key_dim, KvDType dtype) {
  using Kind = MetadataGeometry::Kind;
  switch (kind) {
    case LatentMetadata::kNone: return {};
    case LatentMetadata::kIndexKeys: return {.kind = Kind::kIndexKeys, .kv_heads = 1, .dim = 128, .dtype = dtype};
    case LatentMetadata::kLowRankKeys: return {.kind = Kind::kLowRankKeys, .kv_heads = 1, .dim = key_dim, .rank = 16};
    case LatentMetadata::kWideLowRankKeys:
      return {.kind = Kind::kLowRankKeys, .kv_heads = 1, .dim = key_dim, .rank = 64};
    case LatentMetadata::kBounds:
      return {.kind = Kind::kBlockBounds,
              .kv_heads = 1,
              .dim = key_dim,
              .block_tokens = 16,
              .dtype = dtype == KvDType::kF32 ? KvDType::kF32 : KvDType::kBF16};
  }
  return {};
}

void expect_latent(std::int32_t key_dim, std::int32_t value_dim, std::int32_t rotary_dim, KvDType dtype,
                   const Batch& batch, Random& random) {
  const KvGeometry geometry{1, 1, key_dim, value_dim, Layout::kLatent, dtype};
  const std::int64_t rows = batch.rows();
  const std::int32_t rope = key_dim - value_dim;
  const std::int64_t stride = key_dim + 8;
  const std::vector<float> weight = random.normals(value_dim);
  std::vector<float> latent = random.normals(rows * value_dim);
  std::vector<float> rope_part = random.normals(rows * rope);
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
  const auto inv_freq = to_device(frequencies(rotary_dim));
  const auto norm = to_device(weight);
  const auto device_in = to_device(in);
  constexpr std::int32_t kIndexDim = 128;
  const std::vector<float> index_in = random.normals(rows * kIndexDim);
  const std::vector<float> index_weight = random.normals(kIndexDim);
  const std::vector<float> index_bias = random.normals(kIndexDim);
  const std::vector<float> index_keys = index_keys_of(index_in, batch, kIndexDim, index_weight, index_bias, rotary_dim);
  const auto device_index_in = to_device(index_in);
  const auto device_index_weight = to_device(index_weight);
  const auto device_index_bias = to_device(index_bias);
  for (const LatentMetadata kind : {LatentMetadata::kNone, LatentMetadata::kIndexKeys, LatentMetadata::kLowRankKeys,
                                    LatentMetadata::kWideLowRankKeys, LatentMetadata::kBounds}) {
    const bool with_out = kind != LatentMetadata::kIndexKeys;
    const MetadataPages metadata(metadata_of(kind, key_dim, dtype), batch, random);
    const DeviceValues out(std::vector<float>(static_cast<std::size_t>(rows * key_dim), kPoison), ActivationType::kF32);
    DeviceBuffer<std::byte> pool(expected.size());
    pool.fill_bytes(0xcd);
    LatentRowsParams params;
    params.geometry = geometry;
    params.targets = target_of(batch, tables, positions, pool);
    params.rotation = {inv_freq.data(), rotary_dim, kFactor};
    params.in = device_in.data();
    params.in_stride = stride;
    params.norm = norm.data();
    params.epsilon = 1e-5F;
    params.out = with_out ? static_cast<float*>(out.data()) : nullptr;
    params.out_stride = key_dim;
    params.rows = rows;
    const auto metadata_pool = to_device(metadata.dirt());
    params.metadata = metadata.target(metadata_pool);
    if (kind == LatentMetadata::kIndexKeys) {
      params.index_keys = {device_index_in.data(),   kIndexDim, device_index_weight.data(),
                           device_index_bias.data(), 1e-6F,     {inv_freq.data(), rotary_dim, kFactor}};
    }
    params.follows_product = !with_out;
    launch_latent_rows(params, nullptr);
    const std::string what = concat(rows, " rows of ", key_dim, "/", value_dim, ", rotary ", rotary_dim, ", row type ",
                                    static_cast<int>(dtype));
    ASSERT_NO_FATAL_FAILURE(expect_pool(to_host(pool), expected, geometry.row_bytes(), what));
    if (kind != LatentMetadata::kNone) {
      ASSERT_NO_FATAL_FAILURE(expect_pool(to_host(metadata_pool),
                                          metadata.with(kind == LatentMetadata::kIndexKeys ? index_keys : whole),
                                          metadata_of(kind, key_dim, dtype).page_bytes(), "metadata, " + what));
    }
    const std::vector<float> nothing(whole.size(), kPoison);
    ASSERT_TRUE(same_bits(out.values(), with_out ? written(whole, batch) : nothing)) << what;
  }
}

TEST_F(NewRows, LatentAreTheLaunchersOneByOne) {
  Random random;
  for (const auto& [key_dim, value_dim, rotary_dim] :
       {std::tuple{576, 512, 64}, std::tuple{48, 32, 16}, std::tuple{304, 272, 20}, std::tuple{192, 160, 32}}) {
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
      for (const std::int64_t rows : {1, 33}) {
        ASSERT_NO_FATAL_FAILURE(
            expect_latent(key_dim, value_dim, rotary_dim, dtype, decode_batch(random, rows), random));
      }
      ASSERT_NO_FATAL_FAILURE(expect_latent(key_dim, value_dim, rotary_dim, dtype, chunk_batch(60, 200), random));
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
