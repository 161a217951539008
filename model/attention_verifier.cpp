#include "model/attention_verifier.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/concat.h"
#include "core/splitmix.h"

namespace hotset::model {

std::string describe(const VerifyFailure& failure) {
  return concat("sequence ", failure.sequence.value(), ", layer ", failure.layer.value(), ", block ", failure.block,
                failure.kind == VerifyFailure::Kind::kRow ? ": rows on the device differ from the host's"
                                                          : ": attention differs from that over the host's rows");
}

AttentionVerifier::AttentionVerifier(double rate, std::int32_t heads, float scale, kernels::Backend& backend,
                                     sparse::TieredKv& kv)
    : rate_(rate), heads_(heads), scale_(scale), backend_(backend), kv_(kv) {}

bool AttentionVerifier::due(std::uint64_t step, LayerId layer) const {
  if (rate_ <= 0) return false;
  constexpr double kRange = 18446744073709551616.0;  // 2^64
  return static_cast<double>(splitmix64(splitmix64(step) + static_cast<std::uint64_t>(layer.value()))) < rate_ * kRange;
}

void AttentionVerifier::check(LayerId layer, const AttendedRow& row) {
  ++outcome_.checked;
  const bool rows = check_rows(layer, row);
  const bool attention = check_attention(layer, row);
  if (!rows || !attention) ++outcome_.failed;
}

VerifyOutcome AttentionVerifier::take() { return std::exchange(outcome_, {}); }

bool AttentionVerifier::same_rows(const sparse::SequenceKv& kv, LayerId layer, std::int64_t first, std::int64_t rows,
                                  const std::byte* device) const {
  const auto bytes = static_cast<std::size_t>(rows * kv_.geometry().row_bytes());
  return std::memcmp(device, kv_.host_row(kv, layer, first), bytes) == 0;
}

bool AttentionVerifier::check_rows(LayerId layer, const AttendedRow& row) {
  const sparse::SequenceKv& kv = *row.kv;
  bool good = true;
  const auto compare = [&](std::int64_t first, std::int64_t count, const std::byte* device) {
    if (count <= 0 || same_rows(kv, layer, first, count, device)) return;
    good = false;
    report(layer, row, first / row.block_tokens, VerifyFailure::Kind::kRow);
  };
  if (kv.mode == sparse::KvMode::kHot) {
    for (const sparse::TieredKv::BufferedBlock& block : kv_.buffered_blocks(kv, layer)) {
      compare(block.first, std::min<std::int64_t>(block.rows, kv.host_complete - block.first), block.device);
    }
    for (std::int64_t position = kv_.ring_begin(kv, layer); position < kv.host_complete; ++position) {
      compare(position, 1, kv_.device_row(kv, layer, position));
    }
    return good;
  }
  list_positions(row);
  for (const std::int64_t position : positions_) {
    if (position < kv.host_complete) compare(position, 1, kv_.device_row(kv, layer, position));
  }
  return good;
}

bool AttentionVerifier::check_attention(LayerId layer, const AttendedRow& row) {
  const sparse::SequenceKv& kv = *row.kv;
  const auto row_bytes = static_cast<std::size_t>(kv_.geometry().row_bytes());
  list_positions(row);
  rows_.resize(positions_.size() * row_bytes);
  slots_.resize(positions_.size());
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    const std::byte* source = positions_[i] < kv.host_complete ? kv_.host_row(kv, layer, positions_[i])
                                                               : kv_.device_row(kv, layer, positions_[i]);
    std::memcpy(rows_.data() + i * row_bytes, source, row_bytes);
    slots_[i] = static_cast<std::int64_t>(i);
  }
  context_.resize(static_cast<std::size_t>(heads_) * static_cast<std::size_t>(kv_.geometry().value_dim));
  const std::array<std::int64_t, 2> offsets{0, static_cast<std::int64_t>(slots_.size())};
  backend_.slot_attention({.geometry = kv_.geometry(),
                           .q = row.q,
                           .q_stride = std::int64_t{heads_} * kv_.geometry().key_dim,
                           .pool = rows_.data(),
                           .slots = slots_.data(),
                           .slot_offsets = offsets.data(),
                           .out = context_.data(),
                           .out_stride = static_cast<std::int64_t>(context_.size()),
                           .rows = 1,
                           .heads = heads_,
                           .scale = scale_});
  if (std::memcmp(context_.data(), row.context, context_.size() * sizeof(float)) == 0) return true;
  report(layer, row, (row.length - 1) / row.block_tokens, VerifyFailure::Kind::kAttention);
  return false;
}

void AttentionVerifier::list_positions(const AttendedRow& row) {
  positions_.clear();
  if (row.everything) {
    for (std::int64_t position = 0; position < row.length; ++position) positions_.push_back(position);
    return;
  }
  for (const std::int32_t block : row.blocks) {
    const std::int64_t first = std::int64_t{block} * row.block_tokens;
    const std::int64_t end = std::min(first + row.block_tokens, row.length);
    for (std::int64_t position = first; position < end; ++position) positions_.push_back(position);
  }
}

void AttentionVerifier::report(LayerId layer, const AttendedRow& row, std::int64_t block, VerifyFailure::Kind kind) {
  if (outcome_.failures.size() == VerifyOutcome::kMostFailures) return;
  outcome_.failures.push_back({.sequence = row.kv->id, .layer = layer, .block = block, .kind = kind});
}

}  // namespace hotset::model
