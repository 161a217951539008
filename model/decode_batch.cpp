#include "model/decode_batch.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "kernels/cuda/embed.h"

namespace hotset::model {
namespace {

constexpr std::int64_t kWideArrays = 6;
constexpr std::int64_t kNarrowArrays = 5;
constexpr std::int32_t kBucketStep = 16;  // behind 16 rows; below, powers of two

// A length of a few kinds: a power of two from 1,024 on.
std::int64_t length_bucket(std::int64_t length, std::int64_t most) {
  constexpr std::uint64_t kLeast = 1024;
  if (length == 0) return 0;
  return std::min<std::int64_t>(
      most, static_cast<std::int64_t>(std::max(kLeast, std::bit_ceil(static_cast<std::uint64_t>(length)))));
}

}  // namespace

std::int32_t DecodeBatch::bucket(std::int64_t rows) {
  if (rows <= kBucketStep) return static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  return static_cast<std::int32_t>(round_up(rows, kBucketStep));
}

DecodeBatch::DecodeBatch(kernels::DenseBackend& backend, std::int32_t max_rows, std::int32_t least_rows)
    : max_rows_(bucket(max_rows)),
      least_rows_(std::min(bucket(least_rows), max_rows_)),
      bytes_(max_rows_ * (kWideArrays * 8 + kNarrowArrays * 4)),
      memory_(backend.array<std::byte>(bytes_)),
      device_(arrays_at(memory_.data())) {}

DecodeBatch::Arrays DecodeBatch::arrays_at(std::byte* memory) const {
  auto* const wide = reinterpret_cast<std::int64_t*>(memory);
  auto* const narrow = reinterpret_cast<std::int32_t*>(wide + kWideArrays * max_rows_);
  return {.positions = wide,
          .metadata_positions = wide + max_rows_,
          .scored_lengths = wide + 2 * max_rows_,
          .blocks = wide + 3 * max_rows_,
          .first = wide + 4 * max_rows_,
          .last = wide + 5 * max_rows_,
          .tokens = narrow,
          .drawn = narrow + max_rows_,
          .lengths = narrow + 2 * max_rows_,
          .budgets = narrow + 3 * max_rows_,
          .block_tokens = narrow + 4 * max_rows_};
}

DecodeShape DecodeBatch::fill(std::span<const DecodeRow> rows, const std::int32_t* drawn, std::int64_t max_tokens,
                              kernels::cuda::PinnedBlock& block, const kernels::cuda::DeviceStream& stream) {
  DecodeShape shape{.rows = std::max(least_rows_, bucket(static_cast<std::int64_t>(rows.size())))};
  HS_CHECK(shape.rows <= max_rows_, "the batch fits");
  const std::span<std::byte> memory = block.take<std::byte>(bytes_);
  std::fill(memory.begin(), memory.end(), std::byte{0});
  const Arrays host = arrays_at(memory.data());
  bool any_drawn = false;
  std::fill_n(host.positions, max_rows_, -1);
  std::fill_n(host.metadata_positions, max_rows_, -1);
  std::fill_n(host.tokens, max_rows_, -1);
  std::fill_n(host.drawn, max_rows_, -1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const DecodeRow& row = rows[i];
    const std::int64_t length = row.position + 1;
    host.positions[i] = row.position;
    if (row.keeps_metadata) host.metadata_positions[i] = row.position;
    host.tokens[i] = row.token;
    host.drawn[i] = row.drawn;
    any_drawn = any_drawn || row.drawn >= 0;
    host.lengths[i] = static_cast<std::int32_t>(length);
    shape.hot = shape.hot || row.hot;
    if (row.selection == nullptr) {
      shape.longest_list = std::max(shape.longest_list, length);
      continue;
    }
    const std::int64_t block_tokens = row.selection->block_tokens();
    const auto open = row.selection->candidates(length);
    const bool scored = row.selection->metadata().kind != MetadataGeometry::Kind::kNone;
    host.blocks[i] = ceil_div(length, block_tokens);
    host.first[i] = open.first;
    host.last[i] = open.last;
    host.budgets[i] = static_cast<std::int32_t>(scored ? row.budget : 0);
    host.block_tokens[i] = static_cast<std::int32_t>(block_tokens);
    shape.most_blocks = std::max(shape.most_blocks, host.blocks[i]);
    shape.longest_list =
        std::max(shape.longest_list, std::max(row.budget, row.selection->forced_blocks()) * block_tokens);
    if (!scored || host.blocks[i] <= row.budget || open.first >= open.last) continue;  // everything, without scores
    host.scored_lengths[i] = length;
    shape.longest_scored = std::max(shape.longest_scored, length);
  }
  shape.longest_list = length_bucket(shape.longest_list, max_tokens);
  shape.longest_scored = length_bucket(shape.longest_scored, max_tokens);
  shape.most_blocks = length_bucket(shape.most_blocks, max_tokens);
  stream.copy(memory.data(), memory_.data(), bytes_);
  if (any_drawn) {
    kernels::cuda::launch_take_tokens(
        {.from = drawn, .indices = device_.drawn, .tokens = device_.tokens, .count = shape.rows}, stream.get());
  }
  return shape;
}

}  // namespace hotset::model
