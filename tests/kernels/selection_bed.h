// One sequence's metadata in pages that were used before: what lies behind the newest token is dirt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/kv_metadata_format.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {

inline MetadataGeometry index_geometry(std::int32_t dim, KvDType dtype) {
  return {MetadataGeometry::Kind::kIndexKeys, 1, dim, 0, 1, dtype};
}
inline MetadataGeometry low_rank_geometry(std::int32_t kv_heads, std::int32_t dim, std::int32_t rank) {
  return {MetadataGeometry::Kind::kLowRankKeys, kv_heads, dim, rank, 1, KvDType::kF32};
}
inline MetadataGeometry bounds_geometry(std::int32_t kv_heads, std::int32_t dim, std::int32_t block, KvDType dtype) {
  return {MetadataGeometry::Kind::kBlockBounds, kv_heads, dim, 0, block, dtype};
}

class SelectionBed {
 public:
  // `dirt`: 0xff makes NaN of every format, 0x7f large numbers.
  SelectionBed(const MetadataGeometry& geometry, const std::vector<float>& basis = {}, unsigned char dirt = 0xff)
      : geometry_(geometry), basis_(basis), dirt_(dirt) {}

  [[nodiscard]] std::int64_t width() const { return std::int64_t{geometry_.kv_heads} * geometry_.dim; }
  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(keys_.size()) / width(); }
  [[nodiscard]] const std::vector<float>& keys() const { return keys_; }
  [[nodiscard]] const std::vector<float>& basis() const { return basis_; }
  [[nodiscard]] const MetadataGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const std::vector<const std::byte*>& pages() const { return pages_; }

  // keys [tokens][width], in one call of the backend.
  void append(Backend& backend, const std::vector<float>& keys) {
    const std::int64_t first = length();
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    while (static_cast<std::int64_t>(pages_.size()) < pages_for_tokens(length())) {
      const auto bytes = static_cast<std::size_t>(geometry_.page_bytes());
      storage_.push_back(std::make_unique<std::byte[]>(bytes));
      std::fill_n(storage_.back().get(), bytes, std::byte{dirt_});
      pages_.push_back(storage_.back().get());
    }
    std::vector<std::byte*> targets;
    std::vector<std::int32_t> offsets;
    for (std::int64_t token = first; token < length(); ++token) {
      targets.push_back(storage_[static_cast<std::size_t>(token / kPageTokens)].get());
      offsets.push_back(static_cast<std::int32_t>(token % kPageTokens));
    }
    StoreMetadataParams params;
    params.geometry = geometry_;
    params.keys = keys_.data() + first * width();
    params.stride = width();
    params.basis = basis_.data();
    params.pages = targets.data();
    params.offsets = offsets.data();
    params.rows = length() - first;
    backend.store_metadata(params);
  }

  // What the pages hold: [tokens][kv_heads][rank] of low-rank keys, [tokens][dim] of index keys.
  [[nodiscard]] std::vector<float> decoded() const {
    std::vector<float> out;
    const bool low_rank = geometry_.kind == MetadataGeometry::Kind::kLowRankKeys;
    std::vector<float> one(static_cast<std::size_t>(low_rank ? geometry_.rank : geometry_.dim));
    for (std::int64_t token = 0; token < length(); ++token)
      for (std::int64_t head = 0; head < geometry_.kv_heads; ++head) {
        const std::byte* page = pages_[static_cast<std::size_t>(token / kPageTokens)];
        if (low_rank)
          decode_low_rank_key(geometry_, head, page, token % kPageTokens, one.data());
        else
          decode_index_key(geometry_, page, token % kPageTokens, one.data());
        out.insert(out.end(), one.begin(), one.end());
      }
    return out;
  }

 private:
  MetadataGeometry geometry_;
  std::vector<float> basis_;
  unsigned char dirt_;
  std::vector<float> keys_;
  std::vector<std::unique_ptr<std::byte[]>> storage_;
  std::vector<const std::byte*> pages_;
};

// The arrays behind a ScoredRows. Rows of one bed share its table.
class RowTable {
 public:
  void add(const SelectionBed& bed, std::int64_t query_row, std::int64_t length) {
    if (beds_.empty() || beds_.back() != &bed) {
      table_ = static_cast<std::int64_t>(pages_.size());
      pages_.insert(pages_.end(), bed.pages().begin(), bed.pages().end());
    }
    beds_.push_back(&bed);
    query_rows_.push_back(query_row);
    lengths_.push_back(length);
    page_offsets_.push_back(table_);
  }
  [[nodiscard]] ScoredRows rows(std::vector<float>& scores, std::int64_t stride) const {
    scores.assign(lengths_.size() * static_cast<std::size_t>(stride), kCanary);
    ScoredRows rows;
    rows.geometry = beds_[0]->geometry();
    rows.query_rows = query_rows_.data();
    rows.lengths = lengths_.data();
    rows.pages = pages_.data();
    rows.page_offsets = page_offsets_.data();
    rows.rows = static_cast<std::int64_t>(lengths_.size());
    rows.scores = scores.data();
    rows.stride = stride;
    return rows;
  }
  static constexpr float kCanary = -12345.0F;

 private:
  std::vector<const SelectionBed*> beds_;
  std::vector<std::int64_t> query_rows_, lengths_, page_offsets_;
  std::vector<const std::byte*> pages_;
  std::int64_t table_ = 0;
};

}  // namespace hotset::kernels
