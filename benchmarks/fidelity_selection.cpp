#include "benchmarks/fidelity_selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace hotset::fidelity {
namespace {

// Independent sums, which the compiler may keep in one vector register.
constexpr std::int64_t kLanes = 16;

float dot(const float* a, const float* b, std::int64_t count) {
  std::array<float, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      sums[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Share of the softmax of scores [length] that falls on the blocks.
double selected_share(std::span<const float> scores, std::span<const std::int32_t> blocks, std::int64_t block_tokens) {
  const double top = *std::ranges::max_element(scores);
  double all = 0;
  for (const float score : scores) all += std::exp(score - top);
  double selected = 0;
  for (const std::int32_t block : blocks) {
    const std::int64_t first = block * block_tokens;
    const std::int64_t end = std::min(first + block_tokens, static_cast<std::int64_t>(scores.size()));
    for (std::int64_t at = first; at < end; ++at) selected += std::exp(scores[static_cast<std::size_t>(at)] - top);
  }
  return selected / all;
}

}  // namespace

MassMeter::MassMeter(const KvGeometry& rows, const std::byte* device_rows, std::int64_t every)
    : rows_(rows), device_rows_(device_rows), every_(every) {
  HS_CHECK(rows.layout == KvGeometry::Layout::kGrouped && rows.dtype == KvDType::kF32, "keys are read as they lie");
}

void MassMeter::score_all(const std::vector<PageId>& pages, const float* q, std::int32_t heads, float scale,
                          std::int64_t length) {
  scores_.resize(static_cast<std::size_t>(heads * length));
  const std::int32_t group = heads / rows_.kv_heads;
  for (std::int64_t at = 0; at < length; ++at) {
    const SlotId slot = slot_of(pages[static_cast<std::size_t>(at / kPageTokens)], at % kPageTokens);
    const auto* keys = reinterpret_cast<const float*>(device_rows_ + slot.value() * rows_.row_bytes());
    for (std::int32_t head = 0; head < heads; ++head) {
      scores_[static_cast<std::size_t>(head * length + at)] =
          scale *
          dot(q + std::int64_t{head} * rows_.key_dim, keys + std::int64_t{head / group} * rows_.key_dim, rows_.key_dim);
    }
  }
}

void MassMeter::measure(LayerId layer, const sparse::SelectionRow& row, const sparse::SelectionQueries& queries,
                        std::span<const std::int32_t> blocks, std::int32_t block_tokens) {
  if (row.length % every_ != 0) return;
  const auto found = watched_.find(row.sequence);
  if (found == watched_.end()) return;
  Watched& watched = found->second;
  score_all(watched.kv->device_pages[static_cast<std::size_t>(layer.value())],
            queries.q + row.query_row * queries.q_stride, queries.heads, queries.scale, row.length);
  for (std::int32_t head = 0; head < queries.heads; ++head) {
    const auto scores = std::span<const float>(scores_).subspan(static_cast<std::size_t>(head * row.length),
                                                                static_cast<std::size_t>(row.length));
    watched.sum += selected_share(scores, blocks, block_tokens);
    ++watched.count;
  }
}

double MassMeter::mean(SequenceId sequence) const {
  const auto found = watched_.find(sequence);
  if (found == watched_.end() || found->second.count == 0) return std::numeric_limits<double>::quiet_NaN();
  return found->second.sum / static_cast<double>(found->second.count);
}

PackedMetadata::PackedMetadata(std::span<const Algorithm> algorithms) {
  std::int64_t bytes = 0;
  for (const Algorithm& algorithm : algorithms) {
    const MetadataGeometry part = algorithm->metadata();
    const auto same = [&](const Part& other) { return other.algorithm->metadata() == part; };
    if (part.kind == MetadataGeometry::Kind::kNone || std::ranges::any_of(parts_, same)) continue;
    HS_CHECK(part.kind != MetadataGeometry::Kind::kIndexKeys, "the parts are written from the attention's keys");
    if (parts_.empty()) metadata_ = part;
    parts_.push_back({algorithm, bytes});
    bytes += round_up(part.page_bytes(), 64);
  }
  if (parts_.empty()) return;
  metadata_.kind = MetadataGeometry::Kind::kLowRankKeys;
  metadata_.rank = 2;
  while (metadata_.page_bytes() < bytes) metadata_.rank += 2;
}

std::int64_t PackedMetadata::offset_of(const MetadataGeometry& metadata) const {
  for (const Part& part : parts_) {
    if (part.algorithm->metadata() == metadata) return part.offset;
  }
  return 0;  // it keeps none
}

void PackedMetadata::append(LayerId layer, const sparse::MetadataRows& rows, kernels::Backend& backend) const {
  std::vector<std::byte*> pages;
  for (const Part& part : parts_) {
    pages.clear();
    for (std::byte* page : rows.pages) pages.push_back(page + part.offset);
    part.algorithm->append(layer, {.keys = rows.keys, .stride = rows.stride, .pages = pages, .offsets = rows.offsets},
                           backend);
  }
}

void PackedMetadata::select(LayerId, std::span<const sparse::SelectionRow>, const sparse::SelectionQueries&,
                            kernels::Backend&, sparse::SelectionScratch&, sparse::SelectionList&) const {
  HS_CHECK(false, "the parts' algorithms select");
}

void MeasuredSelection::select(LayerId layer, std::span<const sparse::SelectionRow> rows,
                               const sparse::SelectionQueries& queries, kernels::Backend& backend,
                               sparse::SelectionScratch& scratch, sparse::SelectionList& out) const {
  std::size_t page_count = 0;
  for (const sparse::SelectionRow& row : rows) page_count += row.pages.size();
  std::vector<const std::byte*> pages;
  pages.reserve(page_count);  // spans of it are taken while it fills
  std::vector<sparse::SelectionRow> shifted(rows.begin(), rows.end());
  for (sparse::SelectionRow& row : shifted) {
    const std::size_t first = pages.size();
    for (const std::byte* page : row.pages) pages.push_back(page + offset_);
    row.pages = std::span<const std::byte* const>(pages).subspan(first);
  }
  const std::int64_t first = out.size();
  algorithm_->select(layer, shifted, queries, backend, scratch, out);
  if (!meter_) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    meter_->measure(layer, rows[i], queries, out.row(first + static_cast<std::int64_t>(i)), block_tokens());
  }
}

}  // namespace hotset::fidelity
