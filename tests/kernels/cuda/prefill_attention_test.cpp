#include "kernels/cuda/prefill_attention.h"

#include <cstring>
#include <numeric>
#include <optional>

#include "core/concat.h"
#include "core/half.h"
#include "core/kv_format.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/launch_limits.h"
#include "tests/kernels/cuda/device_vectors.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {
namespace {

struct Shape {
  std::int32_t kv_heads, group, key_dim, value_dim;
  KvDType dtype;
  ActivationType activation = ActivationType::kBF16;
  bool plain = false;

  [[nodiscard]] KvGeometry geometry() const {
    return {.layers = 1,
            .kv_heads = kv_heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .layout = KvGeometry::Layout::kGrouped,
            .dtype = dtype};
  }
  [[nodiscard]] std::int32_t heads() const { return kv_heads * group; }
  [[nodiscard]] std::int64_t q_width() const { return std::int64_t{heads()} * key_dim; }
  [[nodiscard]] std::int64_t out_width() const { return std::int64_t{heads()} * value_dim; }
  [[nodiscard]] float scale() const { return 1.5F / std::sqrt(static_cast<float>(key_dim)); }
  [[nodiscard]] std::string name() const {
    return concat("KV heads ", kv_heads, ", group ", group, ", widths ", key_dim, "/", value_dim, ", rows ",
                  static_cast<int>(dtype), " (0 f32, 1 bf16, 2 FP8), activations ",
                  activation == ActivationType::kBF16 ? "bf16" : "f32", plain ? ", plain" : "");
  }
};

// A prompt of `length` tokens in scattered pages. What lies behind its end is NaN.
struct Prompt {
  Shape shape;
  std::int64_t length = 0;
  std::vector<std::byte> pool;
  std::vector<std::int32_t> pages;
  std::vector<float> q;  // of every position, as the activations' type rounds it
};

Prompt random_prompt(Random& random, const Shape& shape, std::int64_t length) {
  const KvGeometry geometry = shape.geometry();
  Prompt prompt{.shape = shape, .length = length, .pool = {}, .pages = {}, .q = {}};
  prompt.pages.resize(static_cast<std::size_t>(pages_for_tokens(length)));
  std::iota(prompt.pages.begin(), prompt.pages.end(), 1);
  std::shuffle(prompt.pages.begin(), prompt.pages.end(), random.engine());
  prompt.pool.assign((prompt.pages.size() + 2) * static_cast<std::size_t>(geometry.page_bytes()), std::byte{0xff});
  for (std::int64_t p = 0; p < length; ++p) {
    const std::vector<float> key = random.normals(geometry.key_elements());
    const std::vector<float> value = random.normals(geometry.value_elements());
    const std::int64_t row = prompt.pages[static_cast<std::size_t>(p / kPageTokens)] * kPageTokens + p % kPageTokens;
    encode_row(geometry, key.data(), value.data(), prompt.pool.data() + row * geometry.row_bytes());
  }
  prompt.q = random.normals(length * shape.q_width());
  if (shape.activation == ActivationType::kBF16) {
    for (float& x : prompt.q) x = bf16_to_f32(f32_to_bf16(x));
  }
  return prompt;
}

std::vector<float> run_cpu(Backend& backend, const Prompt& prompt, std::int64_t begin, std::int64_t count) {
  const Shape& shape = prompt.shape;
  std::vector<const std::byte*> tiles;
  for (std::int64_t t = 0; t < pages_for_tokens(begin + count); ++t) {
    tiles.push_back(prompt.pool.data() + prompt.pages[static_cast<std::size_t>(t)] * shape.geometry().page_bytes());
  }
  std::vector<float> out(static_cast<std::size_t>(count * shape.out_width()), kNan);
  std::vector<float> acc = out;
  std::vector<float> max(static_cast<std::size_t>(count * shape.heads()), kNan);
  std::vector<float> sum = max;
  PrefillAttentionParams params;
  params.geometry = shape.geometry();
  params.q = prompt.q.data() + begin * shape.q_width();
  params.q_stride = shape.q_width();
  params.rows = count;
  params.first_position = begin;
  params.tiles = tiles.data();
  params.tile_count = static_cast<std::int64_t>(tiles.size());
  params.state = {acc.data(), max.data(), sum.data()};
  params.begin = params.finish = true;
  params.out = out.data();
  params.heads = shape.heads();
  params.scale = shape.scale();
  backend.prefill_attention(params);
  return out;
}

// The CPU's answer to the queries as the device's form rounds them, and how far an element may be off (the form's
// stated error, and float32's).
struct Reference {
  std::vector<float> out;
  std::vector<double> error;

  [[nodiscard]] Reference part(std::int64_t first, std::int64_t count) const {
    return {{out.begin() + first, out.begin() + first + count}, {error.begin() + first, error.begin() + first + count}};
  }
};

Reference reference_of(Backend& cpu, Prompt prompt, std::int64_t begin, std::int64_t count) {
  const KvGeometry geometry = prompt.shape.geometry();
  const PrefillForm form = prefill_attention_form(geometry, launch_limits().hopper ? 9 : 8);
  const bool tensor_cores = !prompt.shape.plain && form == PrefillForm::kWarpgroup;
  if (tensor_cores) {
    for (float& x : prompt.q) x = bf16_to_f32(f32_to_bf16(x));
  }
  Reference reference{.out = run_cpu(cpu, prompt, begin, count), .error = {}};
  const std::int64_t size = kv_dtype_bytes(geometry.dtype);
  for (std::int64_t p = 0; p < prompt.length; ++p) {  // values become their magnitudes
    const std::int64_t row = prompt.pages[static_cast<std::size_t>(p / kPageTokens)] * kPageTokens + p % kPageTokens;
    std::byte* const values = prompt.pool.data() + row * geometry.row_bytes() + geometry.value_offset_bytes();
    for (std::int64_t i = 1; i <= geometry.value_elements(); ++i) values[i * size - 1] &= std::byte{0x7f};
  }
  const std::vector<float> magnitudes = run_cpu(cpu, prompt, begin, count);
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    const double result = prompt.shape.activation == ActivationType::kBF16 ? 0x1p-8 * std::abs(reference.out[i]) : 0;
    reference.error.push_back((tensor_cores ? 0x1p-8 + 1e-4 : 1e-5) * magnitudes[i] + result);
  }
  return reference;
}

std::vector<std::byte> activation_bytes(const std::vector<float>& x, ActivationType type) {
  std::vector<std::byte> out(x.size() * (type == ActivationType::kBF16 ? 2 : 4));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint16_t half = f32_to_bf16(x[i]);
    if (type == ActivationType::kBF16) {
      std::memcpy(out.data() + 2 * i, &half, 2);
    } else {
      std::memcpy(out.data() + 4 * i, &x[i], 4);
    }
  }
  return out;
}

// Result rows without their padding, which must be untouched.
std::vector<float> result_rows(const DeviceBuffer<std::byte>& out, const Shape& shape, std::int64_t count,
                               std::int64_t stride) {
  std::vector<std::byte> bytes(out.size());
  out.download(bytes.data(), bytes.size());
  const std::int64_t size = shape.activation == ActivationType::kBF16 ? 2 : 4;
  std::vector<float> result;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::byte* const from = bytes.data() + row * stride * size;
    for (std::int64_t c = 0; c < shape.out_width(); ++c) {
      float value = 0.0F;
      std::uint16_t half = 0;
      std::memcpy(size == 2 ? static_cast<void*>(&half) : &value, from + c * size, static_cast<std::size_t>(size));
      result.push_back(size == 2 ? bf16_to_f32(half) : value);
    }
    for (std::int64_t at = shape.out_width() * size; at < stride * size; ++at) {
      EXPECT_EQ(from[at], std::byte{0xcd}) << shape.name() << ": written behind row " << row;
    }
  }
  return result;
}

// The launches of a chunk over pieces that begin at the tiles of `splits`, with the given source of keys and values.
template <class SetSource>
std::vector<float> run_launches(const Prompt& prompt, std::int64_t begin, std::int64_t count,
                                std::vector<std::int64_t> splits, const SetSource& set_source) {
  const Shape& shape = prompt.shape;
  const auto q =
      to_device(activation_bytes(slice(prompt.q, begin * shape.q_width(), count * shape.q_width()), shape.activation));
  const std::int64_t stride = shape.out_width() + 8;
  DeviceBuffer<std::byte> out(
      static_cast<std::size_t>(count * stride * (shape.activation == ActivationType::kBF16 ? 2 : 4)));
  out.fill_bytes(0xcd);
  DeviceBuffer<std::byte> workspace(
      static_cast<std::size_t>(prefill_attention_workspace_bytes(shape.geometry(), shape.heads(), count)));
  workspace.fill_bytes(0xff);  // NaN
  const OwnedStream stream;
  splits.insert(splits.begin(), 0);
  splits.push_back(pages_for_tokens(begin + count));
  for (std::size_t call = 0; call + 1 < splits.size(); ++call) {
    PrefillAttentionDeviceParams params{.geometry = shape.geometry(), .activation = shape.activation};
    params.q = q.data();
    params.q_stride = shape.q_width();
    params.rows = count;
    params.first_position = begin;
    params.first_tile = splits[call];
    params.tile_count = splits[call + 1] - splits[call];
    params.begin = call == 0;
    params.finish = call + 2 == splits.size();
    params.out = out.data();
    params.out_stride = stride;
    params.heads = shape.heads();
    params.scale = shape.scale();
    params.workspace = workspace.data();
    params.plain = shape.plain;
    set_source(params);
    launch_prefill_attention(params, stream.get());
  }
  stream.synchronize();
  return result_rows(out, shape, count, stride);
}

std::vector<float> run_gpu(const Prompt& prompt, std::int64_t begin, std::int64_t count,
                           const std::vector<std::int64_t>& splits = {}) {
  const auto pool = to_device(prompt.pool);
  const auto pages = to_device(prompt.pages);
  return run_launches(prompt, begin, count, splits, [&](PrefillAttentionDeviceParams& params) {
    params.pool = pool.data();
    params.pages = pages.data() + params.first_tile;
  });
}

class PrefillAttention : public GpuTest {
 protected:
  void expect_close(const Shape& shape, const std::vector<float>& out, const Reference& reference) {
    ASSERT_EQ(out.size(), reference.out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_LE(std::abs(double{out[i]} - reference.out[i]), reference.error[i])
          << shape.name() << ": row " << i / static_cast<std::size_t>(shape.out_width()) << ", channel "
          << i % static_cast<std::size_t>(shape.out_width()) << " of all heads; expected " << reference.out[i];
    }
  }

  Random random_;
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(8);
};

std::vector<Shape> shapes() {
  constexpr auto kF32 = ActivationType::kF32;
  constexpr auto kBF16 = ActivationType::kBF16;
  return {{2, 4, 128, 128, KvDType::kBF16},
          {2, 2, 64, 64, KvDType::kBF16},
          {3, 1, 192, 128, KvDType::kBF16},
          {2, 3, 128, 128, KvDType::kFp8},
          {1, 5, 80, 80, KvDType::kBF16},
          {2, 1, 96, 96, KvDType::kFp8, kF32},
          {1, 3, 16, 32, KvDType::kBF16, kF32},
          {2, 2, 128, 128, KvDType::kBF16, kF32},
          {1, 2, 64, 64, KvDType::kFp8},
          {1, 7, 128, 128, KvDType::kBF16},
          {1, 8, 64, 64, KvDType::kFp8, kF32},
          {1, 16, 128, 128, KvDType::kBF16, kF32},
          {1, 64, 64, 64, KvDType::kBF16},
          {2, 7, 128, 128, KvDType::kFp8},
          {2, 3, 128, 128, KvDType::kF32, kF32},
          {1, 16, 48, 32, KvDType::kF32, kF32},
          {2, 2, 48, 32, KvDType::kFp8, kF32, true},
          {1, 2, 192, 128, KvDType::kBF16, kBF16, true}};
}
TEST_F(PrefillAttention, AgreesWithTheCpu) {
  for (const Shape& shape : shapes()) {
    for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 1}, {0, 64}, {0, 300}, {63, 2}, {127, 2}, {191, 129}, {300, 130}}) {
      const Prompt prompt = random_prompt(random_, shape, begin + count);
      expect_close(shape, run_gpu(prompt, begin, count), reference_of(*cpu_, prompt, begin, count));
      if (HasFailure()) {
        ADD_FAILURE() << "queries " << begin << " to " << begin + count;
        break;
      }
    }
  }
}

TEST_F(PrefillAttention, BitsDoNotDependOnTheCall) {
  for (const Shape& shape : shapes()) {
    const Prompt prompt = random_prompt(random_, shape, 700);
    const std::vector<float> whole = run_gpu(prompt, 0, 700);
    EXPECT_TRUE(same_bits(whole, run_gpu(prompt, 0, 700))) << shape.name() << ": twice";
    EXPECT_TRUE(same_bits(whole, run_gpu(prompt, 0, 700, {2, 4, 10}))) << shape.name() << ": pieces";
    for (const auto& [begin, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 100}, {3, 1}, {200, 300}, {77, 601}, {512, 188}}) {
      const std::vector<float> expected = slice(whole, begin * shape.out_width(), count * shape.out_width());
      EXPECT_TRUE(same_bits(expected, run_gpu(prompt, begin, count))) << shape.name() << ": rows from " << begin;
      EXPECT_TRUE(same_bits(expected, run_gpu(prompt, begin, count, {2})))
          << shape.name() << ": pieces, rows from " << begin;
    }
  }
}

// Rows [0, count) of an answer, without a channel of the heads of the first KV head.
std::vector<float> without_channel(std::vector<float> out, const Shape& shape, std::int64_t channel) {
  for (std::size_t head = 0; head < out.size() / static_cast<std::size_t>(shape.value_dim); ++head) {
    if (static_cast<std::int64_t>(head) % shape.heads() < shape.group)
      out[head * static_cast<std::size_t>(shape.value_dim) + static_cast<std::size_t>(channel)] = 0.0F;
  }
  return out;
}

// A value that is not finite reaches its channel of the queries that see it, and nothing else: not the queries before
// it in its tile, nor other channels and KV heads.
TEST_F(PrefillAttention, ValuesThatAreNotFinite) {
  constexpr std::int64_t kChannel = 5;
  for (const Shape& shape : std::vector<Shape>{{2, 4, 128, 128, KvDType::kBF16},
                                               {2, 2, 64, 64, KvDType::kBF16},
                                               {3, 1, 192, 128, KvDType::kBF16},
                                               {2, 1, 80, 80, KvDType::kBF16},
                                               {2, 2, 64, 64, KvDType::kBF16, ActivationType::kF32, true}}) {
    for (const auto& [begin, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 300}, {77, 200}, {130, 1}}) {
      Prompt prompt = random_prompt(random_, shape, begin + count);
      const std::vector<float> clean = run_gpu(prompt, begin, count);
      const Reference reference = reference_of(*cpu_, prompt, begin, count);
      for (const std::int64_t bad : {0, 1, 63, 64, 100, 127, 128, 130, 191, 192, 250, 255, 276}) {
        if (bad >= begin + count) continue;
        const std::int64_t row =
            prompt.pages[static_cast<std::size_t>(bad / kPageTokens)] * kPageTokens + bad % kPageTokens;
        auto* const value = prompt.pool.data() + row * shape.geometry().row_bytes() +
                            shape.geometry().value_offset_bytes() + 2 * kChannel;
        std::uint16_t kept = 0;
        const std::uint16_t not_finite = bad % 3 == 0 ? 0x7fc0 : bad % 3 == 1 ? 0x7f80 : 0xff80;  // NaN, +-infinity
        std::memcpy(&kept, value, 2);
        std::memcpy(value, &not_finite, 2);
        const std::vector<float> out = run_gpu(prompt, begin, count);
        EXPECT_TRUE(same_bits(out, run_gpu(prompt, begin, count, {2}))) << shape.name() << ": pieces, bad " << bad;
        std::memcpy(value, &kept, 2);
        const std::int64_t width = shape.out_width();
        const std::int64_t unseen = std::clamp<std::int64_t>(bad - begin, 0, count);
        const std::int64_t same = std::clamp<std::int64_t>(bad / 128 * 128 - begin, 0, count);
        EXPECT_TRUE(same_bits(slice(out, 0, same * width), slice(clean, 0, same * width))) << shape.name();
        expect_close(shape, slice(out, 0, unseen * width), reference.part(0, unseen * width));
        for (std::int64_t i = unseen; i < count; ++i) {
          for (std::int32_t head = 0; head < shape.group; ++head)
            EXPECT_FALSE(std::isfinite(out[static_cast<std::size_t>(i * width + head * shape.value_dim + kChannel)]));
        }
        Reference seen = reference.part(unseen * width, (count - unseen) * width);
        seen.out = without_channel(std::move(seen.out), shape, kChannel);
        expect_close(shape, without_channel(slice(out, unseen * width, (count - unseen) * width), shape, kChannel),
                     seen);
        if (HasFailure()) {
          ADD_FAILURE() << shape.name() << ": queries from " << begin << ", value " << bad << " is not finite";
          return;
        }
      }
    }
  }
}

// The same of FP8 rows, whose value is a code times a scale: an infinite scale reaches every channel of its KV head.
TEST_F(PrefillAttention, Fp8ScalesThatAreNotFinite) {
  const Shape shape{2, 3, 128, 128, KvDType::kFp8};
  for (const auto& [begin, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 300}, {77, 200}}) {
    Prompt prompt = random_prompt(random_, shape, begin + count);
    const std::vector<float> clean = run_gpu(prompt, begin, count);
    for (const std::int64_t bad : {0, 63, 100, 127, 128, 191, 250}) {
      const std::int64_t row =
          prompt.pages[static_cast<std::size_t>(bad / kPageTokens)] * kPageTokens + bad % kPageTokens;
      auto* const scale =
          prompt.pool.data() + row * shape.geometry().row_bytes() + shape.geometry().value_scales_offset_bytes();
      const float infinite = std::numeric_limits<float>::infinity();
      float kept = 0.0F;
      std::memcpy(&kept, scale, 4);
      std::memcpy(scale, &infinite, 4);
      const std::vector<float> out = run_gpu(prompt, begin, count);
      std::memcpy(scale, &kept, 4);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int32_t head = 0; head < shape.heads(); ++head) {
          const std::int64_t at = i * shape.out_width() + head * std::int64_t{shape.value_dim};
          if (head < shape.group && begin + i >= bad) {
            EXPECT_FALSE(std::isfinite(out[static_cast<std::size_t>(at)]));
          } else {
            ASSERT_TRUE(same_bits(slice(out, at, shape.value_dim), slice(clean, at, shape.value_dim)))
                << "query " << begin + i << ", head " << head << ", scale of " << bad << " is infinite";
          }
        }
      }
    }
  }
}

TEST_F(PrefillAttention, LongFp8RowsAreWidenedPieceByPiece) {
  const Shape shape{1, 2, 64, 64, KvDType::kFp8};
  const Prompt prompt = random_prompt(random_, shape, 8300);
  const std::vector<float> out = run_gpu(prompt, 8150, 150);
  expect_close(shape, out, reference_of(*cpu_, prompt, 8150, 150));
  EXPECT_TRUE(same_bits(out, run_gpu(prompt, 8150, 150, {64, 100})));
}

// Keys in two parts and values, each in a buffer of its own, give the bits of the same numbers in rows.
TEST_F(PrefillAttention, ExpandedKeysAndValues) {
  for (const bool plain : {false, true}) {
    const Shape shape{3, 1, 192, 128, KvDType::kBF16, ActivationType::kBF16, plain};
    Prompt prompt = random_prompt(random_, shape, 400);
    const std::int64_t tokens = 448;
    std::vector<std::uint16_t> own(static_cast<std::size_t>(tokens * 3 * 256), 0x7fff);  // 128 of K, 128 of V
    std::vector<std::uint16_t> rope(static_cast<std::size_t>(tokens * 72), 0x7fff);
    for (std::int64_t p = 0; p < 400; ++p) {
      auto* const row = reinterpret_cast<std::uint16_t*>(prompt.pool.data()) +
                        (prompt.pages[static_cast<std::size_t>(p / 64)] * 64 + p % 64) * 3 * 320;
      std::memcpy(rope.data() + p * 72, row + 128, 128);
      for (std::int64_t head = 0; head < 3; ++head) {
        std::memcpy(row + head * 192 + 128, row + 128, 128);  // the shared part
        std::memcpy(own.data() + (p * 3 + head) * 256, row + head * 192, 256);
        std::memcpy(own.data() + (p * 3 + head) * 256 + 128, row + 3 * 192 + head * 128, 256);
      }
    }
    const auto device_own = to_device(own);
    const auto device_rope = to_device(rope);
    ExpandedKeysValues expanded;
    const std::vector<float> out = run_launches(prompt, 150, 250, {4}, [&](PrefillAttentionDeviceParams& params) {
      const std::int64_t first = params.first_tile * 64;
      expanded = {.keys = device_own.data() + first * 768,
                  .key_row_stride = 768,
                  .key_head_stride = 256,
                  .shared_keys = device_rope.data() + first * 72,
                  .shared_row_stride = 72,
                  .shared_dim = 64,
                  .values = device_own.data() + first * 768 + 128,
                  .value_row_stride = 768,
                  .value_head_stride = 256};
      params.expanded = &expanded;
    });
    EXPECT_TRUE(same_bits(out, run_gpu(prompt, 150, 250))) << shape.name();
    expect_close(shape, out, reference_of(*cpu_, prompt, 150, 250));
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
