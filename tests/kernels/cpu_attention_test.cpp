#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/kv_format.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {
namespace {

using Layout = KvGeometry::Layout;

// Rows as they are stored, and their numbers: the reference sees what is left after encoding, so that its differences
// from a kernel are the kernel's own.
struct Rows {
  KvGeometry geometry;
  std::vector<std::byte> bytes;
  std::vector<float> keys;    // [count][kv_heads * key_dim]
  std::vector<float> values;  // [count][kv_heads * value_dim]
  [[nodiscard]] std::byte* row(std::int64_t i) { return bytes.data() + i * geometry.row_bytes(); }
  [[nodiscard]] const float* key(std::int64_t i, std::int64_t head) const {
    return keys.data() + i * geometry.key_elements() + head * geometry.key_dim;
  }
  [[nodiscard]] const float* value(std::int64_t i, std::int64_t head) const {
    return values.data() + i * geometry.value_elements() + head * geometry.value_dim;
  }
  void poison(std::int64_t i) { std::memset(row(i), 0xff, static_cast<std::size_t>(geometry.row_bytes())); }
};

Rows random_rows(Random& random, const KvGeometry& geometry, std::int64_t count) {
  Rows rows{geometry, std::vector<std::byte>(static_cast<std::size_t>(count * geometry.row_bytes())), {}, {}};
  rows.keys = random.normals(count * geometry.key_elements());
  rows.values = random.normals(count * geometry.value_elements());
  for (std::int64_t i = 0; i < count; ++i) {
    float* const key = rows.keys.data() + i * geometry.key_elements();
    float* const value = rows.values.data() + i * geometry.value_elements();
    encode_row(geometry, key, value, rows.row(i));
    decode_key(geometry, rows.row(i), key);
    if (geometry.layout == Layout::kLatent) {
      std::copy_n(key, geometry.value_dim, value);
    } else {
      decode_value(geometry, rows.row(i), value);
    }
  }
  return rows;
}

struct Shape {
  std::int32_t kv_heads, group, key_dim, value_dim;
  KvDType dtype;
  Layout layout = Layout::kGrouped;
  [[nodiscard]] std::int32_t heads() const { return kv_heads * group; }
  [[nodiscard]] KvGeometry geometry() const { return {1, kv_heads, key_dim, value_dim, layout, dtype}; }
  [[nodiscard]] std::int64_t q_width() const { return std::int64_t{heads()} * key_dim; }
  [[nodiscard]] std::int64_t out_width() const { return std::int64_t{heads()} * value_dim; }
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(key_dim)); }
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.kv_heads << " KV heads x " << s.group << ", " << s.key_dim << " / " << s.value_dim
             << (s.layout == Layout::kLatent ? " latent" : "")
             << (s.dtype == KvDType::kF32    ? " f32"
                 : s.dtype == KvDType::kBF16 ? " bf16"
                                             : " fp8");
}
constexpr KvDType kDTypes[] = {KvDType::kF32, KvDType::kBF16, KvDType::kFp8};

std::vector<Shape> shapes() {
  std::vector<Shape> out;
  for (const KvDType dtype : kDTypes) {
    for (const std::int32_t dim : {8, 16, 32, 64, 80, 100, 128}) out.push_back({2, 1 + dim % 5, dim, dim, dtype});
    for (std::int32_t group = 1; group <= 8; ++group) out.push_back({1 + group % 3, group, 64, 64, dtype});
    // Values narrower and wider than keys; more than one group of FP8 scales, the last one partial.
    out.push_back({2, 3, 24, 16, dtype});
    out.push_back({3, 2, 16, 40, dtype});
    out.push_back({1, 5, 192, 128, dtype});
    out.push_back({2, 2, 150, 260, dtype});
    out.push_back({2, 17, 48, 32, dtype});
    // Latent rows, up to as many heads as DeepSeek-V3 has.
    out.push_back({1, 4, 40, 32, dtype, Layout::kLatent});
    out.push_back({1, 3, 147, 144, dtype, Layout::kLatent});
    out.push_back({1, 7, 100, 100, dtype, Layout::kLatent});
    out.push_back({1, 15, 21, 9, dtype, Layout::kLatent});
    out.push_back({1, 16, 576, 512, dtype, Layout::kLatent});
    out.push_back({1, 65, 72, 64, dtype, Layout::kLatent});
    out.push_back({1, 128, 24, 16, dtype, Layout::kLatent});
  }
  return out;
}

// Attention of one query head over the listed rows, in float64.
std::vector<double> reference(const Rows& rows, const Shape& shape, const float* q, std::int32_t head,
                              const std::vector<std::int64_t>& list) {
  const std::int64_t kv_head = head / shape.group;
  std::vector<double> scores;
  for (const std::int64_t row : list) {
    double sum = 0;
    for (std::int32_t c = 0; c < shape.key_dim; ++c) sum += static_cast<double>(q[c]) * rows.key(row, kv_head)[c];
    scores.push_back(sum * static_cast<double>(shape.scale()));
  }
  std::vector<double> out(static_cast<std::size_t>(shape.value_dim), 0.0);
  if (list.empty()) return out;
  const double max = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const double p = std::exp(scores[i] - max);
    total += p;
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += p * rows.value(list[i], kv_head)[c];
  }
  for (double& value : out) value /= total;
  return out;
}

// Outputs are means of standard normals: 2e-6 is some tens of float32 roundings.
constexpr double kTolerance = 4e-6;

// `row` of q and out; of many heads, every fifth and the last.
void expect_row(const std::vector<float>& out, std::int64_t row, const Rows& rows, const Shape& shape,
                const std::vector<float>& q, const std::vector<std::int64_t>& list) {
  for (std::int32_t head = 0; head < shape.heads(); ++head) {
    if (shape.heads() > 20 && head % 5 != 0 && head + 1 != shape.heads()) continue;
    const float* const query = q.data() + row * shape.q_width() + std::int64_t{head} * shape.key_dim;
    const std::int64_t at = row * shape.out_width() + std::int64_t{head} * shape.value_dim;
    const std::vector<double> expected = reference(rows, shape, query, head, list);
    for (std::int32_t c = 0; c < shape.value_dim; ++c) {
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

// Rows of the result lie `gap` floats further apart than they are wide; the gaps must stay as they were (NaN).
std::vector<float> decode(Backend& backend, const std::byte* pool, const Shape& shape, const std::vector<float>& q,
                          const Lists& lists, std::int64_t gap = 0) {
  std::vector<float> out(static_cast<std::size_t>(lists.rows() * (shape.out_width() + gap)), kNan);
  SlotAttentionParams params;
  params.geometry = shape.geometry();
  params.q = q.data();
  params.q_stride = shape.q_width();
  params.pool = pool;
  params.slots = lists.slots.data();
  params.slot_offsets = lists.offsets.data();
  params.out = out.data();
  params.out_stride = shape.out_width() + gap;
  params.rows = lists.rows();
  params.heads = shape.heads();
  params.scale = shape.scale();
  backend.slot_attention(params);
  return out;
}
std::vector<float> decode(Backend& backend, const Rows& rows, const Shape& shape, const std::vector<float>& q,
                          const Lists& lists) {
  return decode(backend, rows.bytes.data(), shape, q, lists);
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
  const auto all = backends();
  for (const Shape& shape : shapes()) {
    const std::int64_t pool = 100;
    Rows rows = random_rows(random, shape.geometry(), pool + 1);
    rows.poison(pool);  // nobody lists it
    Lists lists;
    for (const std::int64_t length : {0, 1, 63, 64, 65, 127, 129, 200}) lists.add(random_list(random, pool, length, 0));
    lists.add(random_list(random, pool, 130, 0.5));
    lists.add(std::vector<std::int64_t>(70, -1));
    const std::vector<float> q = random.normals(lists.rows() * shape.q_width());

    std::vector<float> expected;
    for (const auto& backend : all) {
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

// Blocks of heads and rows, decoding first or not, tasks of a few heads: none of it may show.
TEST(SlotAttention, HeadAloneEqualsHeadAmongOthers) {
  Random random;
  const auto all = backends();
  for (const KvDType dtype : kDTypes) {
    for (const std::int32_t group : {6, 21, 128}) {
      const Shape shape{1, group, 40, 32, dtype, Layout::kLatent};
      Shape single = shape;
      single.group = 1;
      const Rows rows = random_rows(random, shape.geometry(), 300);
      Lists lists;
      lists.add(random_list(random, 300, 203, 0.1));
      const std::vector<float> q = random.normals(shape.q_width());
      for (const auto& backend : all) {
        const std::vector<float> out = decode(*backend, rows, shape, q, lists);
        for (std::int32_t head = 0; head < group; head += 1 + group / 20) {
          const std::vector<float> alone = decode(*backend, rows, single, slice(q, std::int64_t{head} * 40, 40), lists);
          ASSERT_TRUE(same_bits(alone, slice(out, std::int64_t{head} * 32, 32)))
              << shape << " head " << head << ' ' << backend->description();
        }
      }
    }
  }
}

// The same numbers in both layouts.
TEST(SlotAttention, LatentValueIsThePrefixOfTheKey) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16}) {
    const Shape latent{1, 5, 72, 48, dtype, Layout::kLatent};
    Shape grouped = latent;
    grouped.layout = Layout::kGrouped;
    const Rows rows = random_rows(random, latent.geometry(), 90);
    std::vector<std::byte> bytes(static_cast<std::size_t>(90 * grouped.geometry().row_bytes()));
    for (std::int64_t i = 0; i < 90; ++i) {
      encode_row(grouped.geometry(), rows.key(i, 0), rows.value(i, 0),
                 bytes.data() + i * grouped.geometry().row_bytes());
    }
    Lists lists;
    lists.add(random_list(random, 90, 150, 0.1));
    const std::vector<float> q = random.normals(latent.q_width());
    for (const auto& backend : backends()) {
      EXPECT_TRUE(
          same_bits(decode(*backend, rows, latent, q, lists), decode(*backend, bytes.data(), grouped, q, lists)))
          << backend->description();
    }
  }
}

TEST(SlotAttention, RowAloneEqualsRowAmongOthersAndSlotNumbersDoNotMatter) {
  Random random;
  for (const Shape& shape :
       {Shape{3, 3, 64, 64, KvDType::kF32}, Shape{1, 4, 80, 80, KvDType::kBF16}, Shape{2, 3, 144, 40, KvDType::kFp8},
        Shape{1, 70, 40, 32, KvDType::kFp8, Layout::kLatent}}) {
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
    const std::vector<float> q = random.normals(lists.rows() * shape.q_width());
    const auto single = make_cpu_backend(1);
    const std::vector<float> expected = decode(*single, rows, shape, q, lists);
    for (const auto& backend : backends()) {
      for (std::int64_t row = 0; row < lists.rows(); ++row) {
        Lists alone;
        std::vector<std::int64_t> list = lists.list(row);
        for (std::int64_t& slot : list) slot = slot < 0 ? -1 : moved[static_cast<std::size_t>(slot)];
        alone.add(list);
        const std::vector<float> out =
            decode(*backend, other, shape, slice(q, row * shape.q_width(), shape.q_width()), alone);
        ASSERT_TRUE(same_bits(out, slice(expected, row * shape.out_width(), shape.out_width())))
            << shape << ' ' << backend->description();
      }
    }
  }
}

TEST(SlotAttention, WritesItsOwnRowsOnly) {
  Random random;
  const Shape shape{2, 2, 24, 20, KvDType::kFp8};
  const Rows rows = random_rows(random, shape.geometry(), 80);
  Lists lists;
  for (int i = 0; i < 4; ++i) lists.add(random_list(random, 80, 100, 0));
  const std::vector<float> q = random.normals(4 * shape.q_width());
  for (const auto& backend : backends()) {
    const std::vector<float> expected = decode(*backend, rows, shape, q, lists);
    const std::vector<float> out = decode(*backend, rows.bytes.data(), shape, q, lists, 7);
    for (std::int64_t row = 0; row < 4; ++row) {
      const std::int64_t at = row * (shape.out_width() + 7);
      EXPECT_TRUE(
          same_bits(slice(out, at, shape.out_width()), slice(expected, row * shape.out_width(), shape.out_width())));
      for (const float value : slice(out, at + shape.out_width(), 7)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

// Offsets beyond 2^32 bytes; the kernel gives memory to the touched pages only.
TEST(SlotAttention, FarSlotsGiveTheSameBits) {
  Random random;
  constexpr std::size_t kBytes = std::size_t{9} << 30;
  void* const region =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(region, MAP_FAILED) << "cannot map a sparse region";
  auto* const base = static_cast<std::byte*>(region);
  for (const KvDType dtype : kDTypes) {
    for (const Shape& shape : {Shape{1, 2, 576, 512, dtype, Layout::kLatent}, Shape{2, 2, 64, 48, dtype}}) {
      Rows rows = random_rows(random, shape.geometry(), 6);
      const std::int64_t row_bytes = shape.geometry().row_bytes();
      const std::int64_t at_2g = (1LL << 31) / row_bytes;  // lies across 2^31, or begins there
      const std::int64_t at_4g = (1LL << 32) / row_bytes;
      const std::vector<std::int64_t> far = {0, at_2g, at_2g + 1, at_4g, at_4g + 1, (17LL << 29) / row_bytes};
      for (std::size_t i = 0; i < far.size(); ++i) {
        std::memcpy(base + far[i] * row_bytes, rows.row(static_cast<std::int64_t>(i)),
                    static_cast<std::size_t>(row_bytes));
      }
      Lists near_lists;
      near_lists.add({0, 1, 2, 3, 4, 5});
      Lists far_lists;
      far_lists.add(far);
      const std::vector<float> q = random.normals(shape.q_width());
      for (const auto& backend : backends()) {
        EXPECT_TRUE(
            same_bits(decode(*backend, base, shape, q, far_lists), decode(*backend, rows, shape, q, near_lists)))
            << shape << ' ' << backend->description();
      }
    }
  }
  munmap(region, kBytes);
}

TEST(SlotAttention, NonFiniteRowsStayWithTheirReaders) {
  Random random;
  for (const KvDType dtype : kDTypes) {
    for (const Shape& shape : {Shape{2, 2, 32, 32, dtype}, Shape{1, 20, 40, 32, dtype, Layout::kLatent}}) {
      Rows rows = random_rows(random, shape.geometry(), 80);
      rows.poison(70);
      Lists lists;
      lists.add({1, 2, 3});
      lists.add({4, 70, 5});
      lists.add({6, -1, 7});
      const std::vector<float> q = random.normals(3 * shape.q_width());
      for (const auto& backend : backends()) {
        const std::vector<float> out = decode(*backend, rows, shape, q, lists);
        expect_row(out, 0, rows, shape, q, {1, 2, 3});
        expect_row(out, 2, rows, shape, q, {6, 7});
        for (const float value : slice(out, shape.out_width(), shape.out_width())) EXPECT_TRUE(std::isnan(value));
      }
    }
  }
}

TEST(SlotAttention, ExtremeScoresDoNotOverflow) {
  Random random;
  const Shape shape{1, 3, 64, 64, KvDType::kF32};
  const Rows rows = random_rows(random, shape.geometry(), 200);
  std::vector<float> q = random.normals(shape.q_width());
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
  Prompt prompt{shape, {}, {}, first_position, count, random.normals(count * shape.q_width())};
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
  std::vector<float> out(static_cast<std::size_t>(count * shape.out_width()), kNan);
  std::vector<float> acc(out.size(), kNan);
  std::vector<float> max(static_cast<std::size_t>(count * shape.heads()), kNan);
  std::vector<float> sum = max;
  for (std::size_t call = 0; call + 1 < splits.size(); ++call) {
    PrefillAttentionParams params;
    params.geometry = shape.geometry();
    params.q = prompt.q.data() + begin * shape.q_width();
    params.q_stride = shape.q_width();
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
  const auto all = backends();
  for (const Shape& shape : shapes()) {
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, 65}, {63, 2}, {126, 3}}) {
      if (count > 3 && shape.q_width() > 3000) continue;  // slow without vector instructions
      const Prompt prompt = random_prompt(random, shape, first, count);
      std::vector<float> expected;
      for (const auto& backend : all) {
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
  for (const Shape& shape : {Shape{3, 3, 64, 64, KvDType::kF32}, Shape{1, 5, 80, 80, KvDType::kBF16},
                             Shape{2, 3, 40, 24, KvDType::kFp8}, Shape{1, 9, 40, 32, KvDType::kFp8, Layout::kLatent}}) {
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
                              slice(expected, begin * shape.out_width(), count * shape.out_width())))
            << backend->description();
      }
    }
  }
}

TEST(PrefillAttention, NonFiniteRowsReachOnlyLaterQueries) {
  Random random;
  for (const KvDType dtype : kDTypes) {
    for (const Shape& shape : {Shape{1, 3, 64, 64, dtype}, Shape{1, 4, 40, 32, dtype, Layout::kLatent}}) {
      const Prompt prompt = random_prompt(random, shape, 0, 100);
      Prompt dirty = prompt;
      dirty.rows.poison(75);
      for (std::size_t t = 0; t < dirty.tiles.size(); ++t) {
        dirty.tiles[t] = dirty.rows.row(static_cast<std::int64_t>(t) * kPageTokens);
      }
      const std::int64_t clean_floats = 75 * shape.out_width();
      for (const auto& backend : backends()) {
        const std::vector<float> clean = prefill(*backend, prompt, 0, 100);
        const std::vector<float> out = prefill(*backend, dirty, 0, 100);
        EXPECT_TRUE(same_bits(slice(out, 0, clean_floats), slice(clean, 0, clean_floats))) << shape;
        for (const float value : slice(out, clean_floats, 25 * shape.out_width())) EXPECT_TRUE(std::isnan(value));
      }
    }
  }
}

TEST(PrefillAttention, NoQueriesDoNothing) {
  const auto backend = make_cpu_backend(2);
  PrefillAttentionParams params;
  params.geometry = {1, 1, 64, 64, Layout::kGrouped, KvDType::kF32};
  params.heads = 1;
  backend->prefill_attention(params);
  SlotAttentionParams slots;
  slots.geometry = params.geometry;
  slots.heads = 1;
  backend->slot_attention(slots);
}

}  // namespace
}  // namespace hotset::kernels
