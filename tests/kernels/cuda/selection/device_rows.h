// Sequences' metadata pages on the device, in shuffled places of a dirty pool, and the rows that select from them.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/scored_pages.h"
#include "tests/kernels/cuda/device_vectors.h"
#include "tests/kernels/selection_bed.h"

namespace hotset::kernels::cuda {

class DeviceRows {
 public:
  struct Row {
    const SelectionBed* bed;  // null: a padded row
    std::int64_t query_row;
    std::int64_t length;
  };

  DeviceRows(const std::vector<Row>& rows, const MetadataGeometry& geometry, std::int64_t score_stride, Random& random)
      : rows_(rows), geometry_(geometry), stride_(score_stride) {
    std::int64_t count = 0;
    std::map<const SelectionBed*, std::vector<std::int32_t>> ids;
    for (const Row& row : rows) {
      if (row.bed == nullptr || ids.contains(row.bed)) continue;
      ids[row.bed].resize(row.bed->pages().size());
      count += static_cast<std::int64_t>(row.bed->pages().size());
    }
    std::vector<std::int32_t> places(static_cast<std::size_t>(count + 3));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
    std::shuffle(places.begin(), places.end(), random.engine());
    const auto bytes = static_cast<std::size_t>(geometry.page_bytes());
    std::vector<std::byte> pool(places.size() * bytes, std::byte{0xff});
    std::size_t next = 0;
    for (auto& [bed, of_bed] : ids) {
      for (std::size_t page = 0; page < of_bed.size(); ++page) {
        of_bed[page] = places[next++];
        std::memcpy(pool.data() + static_cast<std::size_t>(of_bed[page]) * bytes, bed->pages()[page], bytes);
      }
    }
    std::vector<std::int64_t> lengths, query_rows;
    for (const Row& row : rows) {
      lengths.push_back(row.bed == nullptr ? 0 : row.length);
      query_rows.push_back(row.query_row);
      most_ = std::max(most_, lengths.back());
    }
    page_stride_ = pages_for_tokens(most_) + 1;
    std::vector<std::int32_t> pages(rows.size() * static_cast<std::size_t>(page_stride_), -1);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (rows[row].bed == nullptr) continue;
      const std::vector<std::int32_t>& of_bed = ids[rows[row].bed];
      const auto used = static_cast<std::size_t>(pages_for_tokens(lengths[row]));
      std::copy_n(of_bed.begin(), used, pages.begin() + static_cast<std::ptrdiff_t>(row * page_stride_));
    }
    pool_ = to_device(pool);
    pages_ = to_device(pages);
    lengths_ = to_device(lengths);
    query_rows_ = to_device(query_rows);
    scores_ = DeviceBuffer<float>(rows.size() * static_cast<std::size_t>(stride_));
  }

  // Scores become the canary.
  [[nodiscard]] ScoredPages rows() {
    const std::vector<float> canary(scores_.size(), RowTable::kCanary);
    scores_.upload(canary.data(), canary.size());
    ScoredPages out;
    out.geometry = geometry_;
    out.pool = pool_.data();
    out.pages = pages_.data();
    out.page_stride = page_stride_;
    out.query_rows = query_rows_.data();
    out.lengths = lengths_.data();
    out.rows = static_cast<std::int64_t>(rows_.size());
    out.max_length = most_;
    out.scores = scores_.data();
    out.stride = stride_;
    return out;
  }
  [[nodiscard]] std::vector<float> scores() const {
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    return to_host(scores_, scores_.size());
  }
  // The CPU's scores of the same rows, the canary elsewhere. score(backend, scored rows) calls the launcher.
  template <class Score>
  [[nodiscard]] std::vector<float> cpu_scores(const Score& score) const {
    std::vector<float> all(rows_.size() * static_cast<std::size_t>(stride_), RowTable::kCanary);
    const auto backend = make_cpu_backend(2);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].bed == nullptr || rows_[i].length == 0) continue;
      RowTable table;
      table.add(*rows_[i].bed, rows_[i].query_row, rows_[i].length);
      std::vector<float> one;
      score(*backend, table.rows(one, stride_));
      std::copy(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(i * stride_));
    }
    return all;
  }
  [[nodiscard]] const std::vector<Row>& list() const { return rows_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }

 private:
  std::vector<Row> rows_;
  MetadataGeometry geometry_;
  std::int64_t stride_;
  std::int64_t most_ = 0;
  std::int64_t page_stride_ = 0;
  DeviceBuffer<std::byte> pool_;
  DeviceBuffer<std::int32_t> pages_;
  DeviceBuffer<std::int64_t> lengths_, query_rows_;
  DeviceBuffer<float> scores_;
};

}  // namespace hotset::kernels::cuda
