#include <algorithm>
#include <cstring>

#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {
namespace {

// K and V rows as they are stored, and as numbers.
struct Rows {
  KvGeometry geometry;
  std::vector<std::byte> bytes;
  [[nodiscard]] std::byte* row(std::int64_t i) { return bytes.data() + i * geometry.row_bytes(); }
  [[nodiscard]] double value(std::int64_t row, bool v, std::int64_t channel) const {
    const std::byte* at = bytes.data() + row * geometry.row_bytes() + (v ? geometry.value_offset_bytes() : 0) +
                          channel * kv_dtype_bytes(geometry.dtype);
    if (geometry.dtype == KvDType::kF32) {
      float out;
      std::memcpy(&out, at, 4);
      return out;
    }
    std::uint16_t half;
    std::memcpy(&half, at, 2);
    return std::bit_cast<float>(std::uint32_t{half} << 16);
  }
  void poison(std::int64_t i) { std::memset(row(i), 0xff, static_cast<std::size_t>(geometry.row_bytes())); }
};

Rows random_rows(Random& random, const KvGeometry& geometry, std::int64_t count) {
  Rows rows{geometry, std::vector<std::byte>(static_cast<std::size_t>(count * geometry.row_bytes()))};
  const std::int64_t width = geometry.half_row_elements();
  const std::vector<float> k = random.normals(count * width);
  const std::vector<float> v = random.normals(count * width);
  std::vector<std::byte*> targets;
  for (std::int64_t i = 0; i < count; ++i) targets.push_back(rows.row(i));
  make_cpu_backend(1)->store_rows({geometry, k.data(), v.data(), width, targets.data(), count});
  return rows;
}

struct Shape {
  std::int32_t kv_heads, group, head_dim;
  KvDType dtype;
  [[nodiscard]] std::int32_t heads() const { return kv_heads * group; }
  [[nodiscard]] KvGeometry geometry() const { return {1, kv_heads, head_dim, dtype}; }
  [[nodiscard]] std::int64_t width() const { return std::int64_t{heads()} * head_dim; }
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.kv_heads << " KV heads x " << s.group << ", head_dim " << s.head_dim
             << (s.dtype == KvDType::kF32 ? " f32" : " bf16");
}
std::vector<Shape> shapes() {
  std::vector<Shape> out;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16}) {
    for (const std::int32_t dim : {8, 16, 32, 64, 80, 100, 128}) out.push_back({2, 1 + dim % 5, dim, dtype});
    for (std::int32_t group = 1; group <= 8; ++group) out.push_back({1 + group % 3, group, 64, dtype});
  }
  return out;
}

// Attention of one query head over the listed rows, in float64.
std::vector<double> reference(const Rows& rows, const Shape& shape, const float* q, std::int32_t head,
                              const std::vector<std::int64_t>& list) {
  const std::int64_t first = std::int64_t{head / shape.group} * shape.head_dim;
  std::vector<double> scores;
  for (const std::int64_t row : list) {
    double sum = 0;
    for (std::int32_t c = 0; c < shape.head_dim; ++c)
      sum += static_cast<double>(q[c]) * rows.value(row, false, first + c);
    scores.push_back(sum * static_cast<double>(shape.scale()));
  }
  std::vector<double> out(static_cast<std::size_t>(shape.head_dim), 0.0);
  if (list.empty()) return out;
  const double max = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const double p = std::exp(scores[i] - max);
    total += p;
    for (std::size_t c = 0; c < out.size(); ++c)
      out[c] += p * rows.value(list[i], true, first + static_cast<std::int64_t>(c));
  }
  for (double& value : out) value /= total;
  return out;
}

// Outputs are means of standard normals: 2e-6 is some tens of float32 roundings.
constexpr double kTolerance = 4e-6;

void expect_row(const std::vector<float>& out, std::int64_t row, const Rows& rows, const Shape& shape,
                const std::vector<float>& q, const std::vector<std::int64_t>& list) {
  for (std::int32_t head = 0; head < shape.heads(); ++head) {
    const std::int64_t at = row * shape.width() + std::int64_t{head} * shape.head_dim;
    const std::vector<double> expected = reference(rows, shape, q.data() + at, head, list);
    for (std::int32_t c = 0; c < shape.head_dim; ++c) {
      ASSERT_NEAR(out[static_cast<std::size_t>(at + c)], expected[static_cast<std::size_t>(c)], kTolerance)
          << shape << ", row " << row << " head " << head << " channel " << c;
    }
  }
}

// ---- Decode: lists of slots ----

struct Lists {
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> offsets{0};
  void add(const std::vector<std::int64_t>& list) {
    slots.insert(slots.end(), list.begin(), list.end());
    offsets.push_back(static_cast<std::int64_t>(slots.size()));
  }
  [[nodiscard]] std::vector<std::int64_t> list(std::int64_t row) const {
    return {slots.begin() + offsets[static_cast<std::size_t>(row)],
            slots.begin() + offsets[static_cast<std::size_t>(row) + 1]};
  }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

std::vector<float> decode(Backend& backend, const Rows& rows, const Shape& shape, const std::vector<float>& q,
                          const Lists& lists) {
  std::vector<float> out(static_cast<std::size_t>(lists.rows() * shape.width()), kNan);
  SlotAttentionParams params;
  params.geometry = shape.geometry();
  params.q = q.data();
  params.q_stride = shape.width();
  params.pool = rows.bytes.data();
  params.slots = lists.slots.data();
  params.slot_offsets = lists.offsets.data();
  params.out = out.data();
  params.rows = lists.rows();
  params.heads = shape.heads();
  params.scale = shape.scale();
  backend.slot_attention(params);
  return out;
}

// Slots in no order, some of them holes.
std::vector<std::int64_t> random_list(Random& random, std::int64_t pool, std::int64_t length, double holes) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < length; ++i) {
    list.push_back(random.uniform(0, 1) < holes ? -1 : random.integer(0, pool - 1));
  }
  return list;
}

TEST(SlotAttention, AgreesWithFloat64AndItsOwnBits) {
  Random random;
  for (const Shape& shape : shapes()) {
    const std::int64_t pool = 100;
    const Rows rows = random_rows(random, shape.geometry(), pool);
    Lists lists;
    for (const std::int64_t length : {0, 1, 63, 64, 65, 200}) lists.add(random_list(random, pool, length, 0.0));
    lists.add(random_list(random, pool, 130, 0.5));
    lists.add(std::vector<std::int64_t>(70, -1));
    const std::vector<float> q = random.normals(lists.rows() * shape.width());

    std::vector<float> expected;
    for (const auto& backend : backends()) {
      const std::vector<float> out = decode(*backend, rows, shape, q, lists);
      if (expected.empty()) {
        expected = out;
        for (std::int64_t row = 0; row < lists.rows(); ++row) {
          std::vector<std::int64_t> list = lists.list(row);
          std::erase(list, -1);
          expect_row(out, row, rows, shape, q, list);
        }
      }
      ASSERT_TRUE(same_bits(out, expected)) << shape << ' ' << backend->description();
    }
  }
}

TEST(SlotAttention, RowAloneEqualsRowAmongOthersAndSlotNumbersDoNotMatter) {
  Random random;
  for (const Shape& shape : {Shape{3, 3, 64, KvDType::kF32}, Shape{1, 4, 80, KvDType::kBF16}}) {
    const std::int64_t pool = 600;
    Rows rows = random_rows(random, shape.geometry(), pool);
    // The same rows at other slots.
    std::vector<std::int64_t> moved(static_cast<std::size_t>(pool));
    for (std::int64_t i = 0; i < pool; ++i) moved[static_cast<std::size_t>(i)] = i;
    std::shuffle(moved.begin(), moved.end(), random.engine());
    Rows other = rows;
    for (std::int64_t i = 0; i < pool; ++i) {
      std::memcpy(other.row(moved[static_cast<std::size_t>(i)]), rows.row(i),
                  static_cast<std::size_t>(shape.geometry().row_bytes()));
    }
    Lists lists;
    for (int i = 0; i < 9; ++i) lists.add(random_list(random, pool, random.integer(1, 513), 0.1));
    const std::vector<float> q = random.normals(lists.rows() * shape.width());
    const auto single = make_cpu_backend(1);
    const std::vector<float> expected = decode(*single, rows, shape, q, lists);
    for (const auto& backend : backends()) {
      for (std::int64_t row = 0; row < lists.rows(); ++row) {
        Lists alone;
        std::vector<std::int64_t> list = lists.list(row);
        for (std::int64_t& slot : list) slot = slot < 0 ? -1 : moved[static_cast<std::size_t>(slot)];
        alone.add(list);
        const std::vector<float> out =
            decode(*backend, other, shape, slice(q, row * shape.width(), shape.width()), alone);
        ASSERT_TRUE(same_bits(out, slice(expected, row * shape.width(), shape.width()))) << backend->description();
      }
    }
  }
}

TEST(SlotAttention, NonFiniteRowsStayWithTheirReaders) {
  Random random;
  const Shape shape{2, 2, 32, KvDType::kF32};
  Rows rows = random_rows(random, shape.geometry(), 80);
  rows.poison(70);
  Lists lists;
  lists.add({1, 2, 3});
  lists.add({4, 70, 5});
  lists.add({6, -1, 7});
  const std::vector<float> q = random.normals(3 * shape.width());
  for (const auto& backend : backends()) {
    const std::vector<float> out = decode(*backend, rows, shape, q, lists);
    expect_row(out, 0, rows, shape, q, {1, 2, 3});
    expect_row(out, 2, rows, shape, q, {6, 7});
    for (std::int64_t c = 0; c < shape.width(); ++c)
      EXPECT_TRUE(std::isnan(out[static_cast<std::size_t>(shape.width() + c)]));
  }
}

TEST(SlotAttention, ExtremeScoresDoNotOverflow) {
  Random random;
  const Shape shape{1, 3, 64, KvDType::kF32};
  const Rows rows = random_rows(random, shape.geometry(), 200);
  std::vector<float> q = random.normals(shape.width());
  for (float& value : q) value *= 300.0F;
  Lists lists;
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < 200; ++i) list.push_back(i);
  lists.add(list);
  for (const auto& backend : backends()) {
    // Scores reach some thousands, where float32 has 1e-4 left: compare with a wide tolerance.
    const std::vector<float> out = decode(*backend, rows, shape, q, lists);
    for (std::int32_t head = 0; head < 3; ++head) {
      const std::vector<double> expected = reference(rows, shape, q.data() + head * 64, head, list);
      for (std::int64_t c = 0; c < 64; ++c) {
        ASSERT_NEAR(out[static_cast<std::size_t>(head * 64 + c)], expected[static_cast<std::size_t>(c)], 5e-3);
      }
    }
  }
}

// ---- Prefill: tiles by position ----

struct Prompt {
  Shape shape;
  Rows rows;  // position p at row p
  std::vector<const std::byte*> tiles;
  std::int64_t first_position = 0;
  std::int64_t count = 0;
  std::vector<float> q;
};

Prompt random_prompt(Random& random, const Shape& shape, std::int64_t first_position, std::int64_t count) {
  Prompt prompt{shape, {}, {}, first_position, count, random.normals(count * shape.width())};
  const std::int64_t newest = first_position + count;
  const std::int64_t tiles = ceil_div(newest, kPageTokens);
  prompt.rows = random_rows(random, shape.geometry(), tiles * kPageTokens);
  for (std::int64_t i = newest; i < tiles * kPageTokens; ++i) prompt.rows.poison(i);
  for (std::int64_t t = 0; t < tiles; ++t) prompt.tiles.push_back(prompt.rows.row(t * kPageTokens));
  return prompt;
}

// Queries [begin, begin + count) of the prompt; `splits` are the tile numbers where a new call starts.
std::vector<float> prefill(Backend& backend, const Prompt& prompt, std::int64_t begin, std::int64_t count,
                           std::vector<std::int64_t> splits = {}) {
  const Shape& shape = prompt.shape;
  const std::int64_t tiles = ceil_div(prompt.first_position + begin + count, kPageTokens);
  splits.insert(splits.begin(), 0);
  splits.push_back(tiles);
  std::vector<float> out(static_cast<std::size_t>(count * shape.width()), kNan);
  std::vector<float> acc(out.size(), kNan);
  std::vector<float> max(static_cast<std::size_t>(count * shape.heads()), kNan);
  std::vector<float> sum = max;
  for (std::size_t call = 0; call + 1 < splits.size(); ++call) {
    PrefillAttentionParams params;
    params.geometry = shape.geometry();
    params.q = prompt.q.data() + begin * shape.width();
    params.q_stride = shape.width();
    params.rows = count;
    params.first_position = prompt.first_position + begin;
    params.tiles = prompt.tiles.data() + splits[call];
    params.first_tile = splits[call];
    params.tile_count = splits[call + 1] - splits[call];
    params.state = {acc.data(), max.data(), sum.data()};
    params.begin = call == 0;
    params.finish = call + 2 == splits.size();
    params.out = out.data();
    params.heads = shape.heads();
    params.scale = shape.scale();
    backend.prefill_attention(params);
  }
  return out;
}

TEST(PrefillAttention, AgreesWithFloat64AndItsOwnBits) {
  Random random;
  for (const Shape& shape : shapes()) {
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, 70}, {63, 2}, {100, 33}}) {
      const Prompt prompt = random_prompt(random, shape, first, count);
      std::vector<float> expected;
      for (const auto& backend : backends()) {
        const std::vector<float> out = prefill(*backend, prompt, 0, count);
        if (expected.empty()) {
          expected = out;
          std::vector<std::int64_t> list;
          for (std::int64_t p = 0; p < first; ++p) list.push_back(p);
          for (std::int64_t i = 0; i < count; ++i) {
            list.push_back(first + i);
            if (i % 7 == 0 || i + 1 == count) expect_row(out, i, prompt.rows, shape, prompt.q, list);
          }
        }
        ASSERT_TRUE(same_bits(out, expected)) << shape << ' ' << backend->description();
      }
    }
  }
}

TEST(PrefillAttention, SplitTilesAndSplitQueriesGiveTheSameBits) {
  Random random;
  for (const Shape& shape : {Shape{3, 3, 64, KvDType::kF32}, Shape{1, 5, 80, KvDType::kBF16}}) {
    const Prompt prompt = random_prompt(random, shape, 200, 230);
    const auto single = make_cpu_backend(1);
    const std::vector<float> expected = prefill(*single, prompt, 0, prompt.count);
    for (const auto& backend : backends()) {
      std::vector<std::int64_t> splits;
      for (std::int64_t t = 1; t < static_cast<std::int64_t>(prompt.tiles.size()); ++t) {
        if (random.integer(0, 1) == 1) splits.push_back(t);
      }
      ASSERT_TRUE(same_bits(prefill(*backend, prompt, 0, prompt.count, splits), expected)) << backend->description();
      for (int i = 0; i < 4; ++i) {
        const std::int64_t count = random.integer(1, 90);
        const std::int64_t begin = random.integer(0, prompt.count - count);
        ASSERT_TRUE(same_bits(prefill(*backend, prompt, begin, count),
                              slice(expected, begin * shape.width(), count * shape.width())))
            << backend->description();
      }
    }
  }
}

TEST(PrefillAttention, NonFiniteRowsReachOnlyLaterQueries) {
  Random random;
  const Shape shape{1, 3, 64, KvDType::kF32};
  Prompt prompt = random_prompt(random, shape, 0, 100);
  for (const auto& backend : backends()) {
    const std::vector<float> clean = prefill(*backend, prompt, 0, 100);
    Prompt dirty = prompt;
    dirty.rows.poison(75);
    for (std::size_t t = 0; t < dirty.tiles.size(); ++t)
      dirty.tiles[t] = dirty.rows.row(static_cast<std::int64_t>(t) * 64);
    const std::vector<float> out = prefill(*backend, dirty, 0, 100);
    EXPECT_TRUE(same_bits(slice(out, 0, 75 * shape.width()), slice(clean, 0, 75 * shape.width())));
    for (std::int64_t i = 75 * shape.width(); i < 100 * shape.width(); ++i) {
      EXPECT_TRUE(std::isnan(out[static_cast<std::size_t>(i)]));
    }
  }
}

TEST(PrefillAttention, NoQueriesDoNothing) {
  const auto backend = make_cpu_backend(2);
  PrefillAttentionParams params;
  params.geometry = {1, 1, 64, KvDType::kF32};
  params.heads = 1;
  backend->prefill_attention(params);
  SlotAttentionParams slots;
  slots.geometry = params.geometry;
  slots.heads = 1;
  backend->slot_attention(slots);
}

}  // namespace
}  // namespace hotset::kernels
