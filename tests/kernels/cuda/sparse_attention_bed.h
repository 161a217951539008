// A pool of encoded random rows and ragged lists of slots, for the device and for the CPU backend.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/concat.h"
#include "core/half.h"
#include "core/kv_format.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/sparse_attention.h"
#include "tests/kernels/cuda/device_vectors.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {

inline KvGeometry grouped(KvDType dtype, std::int32_t kv_heads, std::int32_t key_dim, std::int32_t value_dim) {
  return {.layers = 1,
          .kv_heads = kv_heads,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .layout = KvGeometry::Layout::kGrouped,
          .dtype = dtype};
}
inline KvGeometry latent(KvDType dtype, std::int32_t key_dim, std::int32_t value_dim) {
  return {.layers = 1,
          .kv_heads = 1,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .layout = KvGeometry::Layout::kLatent,
          .dtype = dtype};
}

// One call's inputs on the host.
struct AttentionCase {
  KvGeometry geometry;
  std::int32_t heads = 0;
  ActivationType activation = ActivationType::kF32;  // of q
  ActivationType out_type = ActivationType::kF32;
  std::vector<std::byte> pool;  // rows of every slot
  std::vector<float> q;         // [rows, heads * key_dim]; bf16 activations: numbers that bf16 holds
  std::vector<std::vector<std::int64_t>> lists;
  float scale = 1.0F;

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(lists.size()); }
  [[nodiscard]] std::int64_t out_width() const { return std::int64_t{heads} * geometry.value_dim; }
  [[nodiscard]] std::string name() const {
    return concat(geometry.layout == KvGeometry::Layout::kLatent ? "latent" : "grouped", " type ",
                  static_cast<int>(geometry.dtype), " (0 f32, 1 bf16, 2 FP8), widths ", geometry.key_dim, "/",
                  geometry.value_dim, ", KV heads ", geometry.kv_heads, ", heads ", heads, ", queries ",
                  activation == ActivationType::kBF16 ? "bf16" : "f32", ", results ",
                  out_type == ActivationType::kBF16 ? "bf16" : "f32");
  }
  // Rows [first, first + count).
  [[nodiscard]] AttentionCase part(std::int64_t first, std::int64_t count) const {
    AttentionCase out = *this;
    const std::int64_t width = std::int64_t{heads} * geometry.key_dim;
    out.q = slice(q, first * width, count * width);
    out.lists = {lists.begin() + first, lists.begin() + first + count};
    return out;
  }
};

// How it is called: nothing here may show in the bits.
struct CallOptions {
  SlotType slot_type = SlotType::kInt64;
  std::int64_t extra_max_count = 0;  // above the longest list
  bool plain = false;
  std::int64_t pool_shift_rows = 0;  // the pool's rows lie this many slots further
  bool whole = false;                // lists of whole pages are given as these pages; no holes, no shift
};

inline std::vector<std::byte> random_pool(Random& random, const KvGeometry& geometry, std::int64_t slots) {
  std::vector<std::byte> pool(static_cast<std::size_t>(slots * geometry.row_bytes()));
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::vector<float> key = random.normals(geometry.key_elements());
    const std::vector<float> value = random.normals(geometry.value_elements());
    encode_row(geometry, key.data(), value.data(), pool.data() + slot * geometry.row_bytes());
  }
  return pool;
}

// `count` entries in ascending order of chance, some of them holes; all different slots.
inline std::vector<std::int64_t> random_list(Random& random, std::int64_t slots, std::int64_t count, bool holes) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(slots));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random.engine());
  all.resize(static_cast<std::size_t>(count));
  if (holes) {
    for (std::int64_t& slot : all) {
      if (random.integer(0, 9) == 0) slot = -1;
    }
  }
  return all;
}

inline AttentionCase random_case(Random& random, const KvGeometry& geometry, std::int32_t heads,
                                 ActivationType activation, const std::vector<std::int64_t>& counts) {
  const std::int64_t slots = std::max<std::int64_t>(64, *std::max_element(counts.begin(), counts.end()) + 100);
  AttentionCase out{.geometry = geometry,
                    .heads = heads,
                    .activation = activation,
                    .out_type = activation,
                    .pool = {},
                    .q = {},
                    .lists = {}};
  out.scale = 1.5F / std::sqrt(static_cast<float>(geometry.key_dim));
  out.pool = random_pool(random, geometry, slots);
  out.q = random.normals(static_cast<std::int64_t>(counts.size()) * heads * geometry.key_dim);
  if (activation == ActivationType::kBF16) {
    for (float& x : out.q) x = bf16_to_f32(f32_to_bf16(x));
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    out.lists.push_back(random_list(random, slots, counts[i], i % 2 == 1));
  }
  return out;
}

inline std::vector<float> run_cpu(Backend& backend, const AttentionCase& given) {
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> offsets{0};
  for (const auto& list : given.lists) {
    slots.insert(slots.end(), list.begin(), list.end());
    offsets.push_back(static_cast<std::int64_t>(slots.size()));
  }
  slots.push_back(-1);  // data() of an empty vector may be null
  std::vector<float> out(static_cast<std::size_t>(given.rows() * given.out_width()), kNan);
  backend.slot_attention({.geometry = given.geometry,
                          .q = given.q.data(),
                          .q_stride = std::int64_t{given.heads} * given.geometry.key_dim,
                          .pool = given.pool.data(),
                          .slots = slots.data(),
                          .slot_offsets = offsets.data(),
                          .out = out.data(),
                          .out_stride = given.out_width(),
                          .rows = given.rows(),
                          .heads = given.heads,
                          .scale = given.scale});
  return out;
}

// Device copy of numbers in the activations' type, rows `stride` elements apart, filled with 0xcd elsewhere.
inline std::vector<std::byte> activation_bytes(const std::vector<float>& x, std::int64_t rows, std::int64_t width,
                                               std::int64_t stride, ActivationType type) {
  const std::int64_t size = type == ActivationType::kBF16 ? 2 : 4;
  std::vector<std::byte> out(static_cast<std::size_t>(std::max<std::int64_t>(rows * stride * size, 16)),
                             std::byte{0xcd});
  for (std::int64_t i = 0; i < rows * width; ++i) {
    std::byte* const to = out.data() + (i / width * stride + i % width) * size;
    const float value = x[static_cast<std::size_t>(i)];
    const std::uint16_t half = f32_to_bf16(value);
    std::memcpy(to, type == ActivationType::kBF16 ? static_cast<const void*>(&half) : &value,
                static_cast<std::size_t>(size));
  }
  return out;
}

inline std::vector<float> run_gpu(const AttentionCase& given, const CallOptions& options = {}) {
  const KvGeometry& geometry = given.geometry;
  const std::int64_t rows = given.rows();
  std::int64_t longest = 0;
  for (const auto& list : given.lists) longest = std::max(longest, static_cast<std::int64_t>(list.size()));
  const std::int64_t max_count = longest + options.extra_max_count;
  const std::int64_t slot_stride = max_count + 3;
  std::vector<std::int64_t> wide(static_cast<std::size_t>(rows * slot_stride), std::int64_t{1} << 40);  // never read
  std::vector<std::int32_t> narrow(wide.size(), 1 << 30);
  std::vector<std::int32_t> counts;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto& list = given.lists[static_cast<std::size_t>(row)];
    counts.push_back(static_cast<std::int32_t>(list.size()));
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::int64_t slot = list[i] < 0 ? -1 : list[i] + options.pool_shift_rows;
      wide[static_cast<std::size_t>(row * slot_stride) + i] = slot;
      narrow[static_cast<std::size_t>(row * slot_stride) + i] = static_cast<std::int32_t>(slot);
    }
  }
  const std::int64_t q_width = std::int64_t{given.heads} * geometry.key_dim;
  const std::int64_t q_stride = q_width + 8;
  const std::int64_t out_stride = given.out_width() + 5;
  const std::int64_t shift_bytes = options.pool_shift_rows * geometry.row_bytes();
  DeviceBuffer<std::byte> pool(static_cast<std::size_t>(shift_bytes) + given.pool.size());
  HOTSET_CUDA_CHECK(
      cudaMemcpy(pool.data() + shift_bytes, given.pool.data(), given.pool.size(), cudaMemcpyHostToDevice));
  const auto q = to_device(activation_bytes(given.q, rows, q_width, q_stride, given.activation));
  const auto wide_slots = to_device(wide);
  const auto narrow_slots = to_device(narrow);
  const auto device_counts = to_device(counts);
  std::vector<DeviceBuffer<std::int32_t>> pages;
  std::vector<HotRow> whole;
  for (const auto& list : given.lists) {
    std::vector<std::int32_t> of_row(1, -1);  // data() of an empty vector may be null
    for (std::size_t i = 0; i < list.size(); i += kPageTokens) {
      of_row.insert(of_row.end() - 1, static_cast<std::int32_t>(list[i] / kPageTokens));
    }
    pages.push_back(to_device(of_row));
    whole.push_back({.device_pages = pages.back().data()});
  }
  const auto device_whole = to_device(whole);
  const std::int64_t size = given.out_type == ActivationType::kBF16 ? 2 : 4;
  DeviceBuffer<std::byte> out(static_cast<std::size_t>(rows * out_stride * size));
  out.fill_bytes(0xcd);
  constexpr std::size_t kGuard = 4096;  // behind the workspace
  const AttentionForm form = options.plain ? AttentionForm::kPlain : sparse_attention_form(geometry, given.heads);
  const auto workspace_bytes =
      static_cast<std::size_t>(sparse_attention_workspace_bytes(geometry, given.heads, rows, max_count, form));
  DeviceBuffer<std::byte> workspace(workspace_bytes + kGuard);
  workspace.fill_bytes(0xff);  // NaN
  DeviceBuffer<std::int32_t> arrivals(static_cast<std::size_t>(rows * given.heads));
  arrivals.fill_bytes(0);
  const OwnedStream stream;
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  launch_sparse_attention({.geometry = geometry,
                           .q_type = given.activation,
                           .out_type = given.out_type,
                           .q = q.data(),
                           .q_stride = q_stride,
                           .pool = pool.data(),
                           .slot_type = options.slot_type,
                           .slots = options.slot_type == SlotType::kInt64 ? static_cast<const void*>(wide_slots.data())
                                                                          : narrow_slots.data(),
                           .slot_stride = slot_stride,
                           .counts = device_counts.data(),
                           .max_count = max_count,
                           .whole = options.whole ? device_whole.data() : nullptr,
                           .lengths = options.whole ? device_counts.data() : nullptr,
                           .out = out.data(),
                           .out_stride = out_stride,
                           .rows = rows,
                           .heads = given.heads,
                           .scale = given.scale,
                           .workspace = workspace.data(),
                           .arrivals = arrivals.data(),
                           .plain = options.plain},
                          stream.get());
  stream.synchronize();
  std::vector<std::int32_t> left(arrivals.size());
  arrivals.download(left.data(), left.size());
  EXPECT_EQ(std::count(left.begin(), left.end(), 0), static_cast<std::ptrdiff_t>(left.size())) << given.name();
  std::vector<std::byte> guard(kGuard);
  HOTSET_CUDA_CHECK(cudaMemcpy(guard.data(), workspace.data() + workspace_bytes, kGuard, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::count(guard.begin(), guard.end(), std::byte{0xff}), static_cast<std::ptrdiff_t>(kGuard))
      << given.name() << ": written behind the workspace";
  std::vector<std::byte> bytes(out.size());
  out.download(bytes.data(), bytes.size());
  std::vector<float> result;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* const from = bytes.data() + row * out_stride * size;
    for (std::int64_t c = 0; c < given.out_width(); ++c) {
      float value;
      if (size == 4) {
        std::memcpy(&value, from + 4 * c, 4);
      } else {
        std::uint16_t half;
        std::memcpy(&half, from + 2 * c, 2);
        value = bf16_to_f32(half);
      }
      result.push_back(value);
    }
    for (std::int64_t at = given.out_width() * size; at < out_stride * size; ++at) {
      EXPECT_EQ(from[at], std::byte{0xcd}) << given.name() << ": written behind row " << row;
    }
  }
  return result;
}

}  // namespace hotset::kernels::cuda
