// Page tables of a batch in shuffled places of one pool, on the device and for the tests' own arithmetic.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/kv_geometry.h"
#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_vectors.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {

// One batch row: hot_blocks 0 is a resident sequence of up to `tokens` tokens.
struct TableShape {
  std::int64_t tokens = 0;
  std::int32_t hot_blocks = 0;
  std::int32_t block_tokens = 1;
  std::int32_t ring_tokens = 0;
};

class PageTables {
 public:
  PageTables(const std::vector<TableShape>& shapes, Random& random) : shapes_(shapes) {
    std::int64_t count = 0;
    for (const TableShape& shape : shapes) {
      first_page_.push_back(count);
      count += shape.hot_blocks == 0 ? pages_for_tokens(shape.tokens)
                                     : buffer_pages(shape) + pages_for_tokens(shape.ring_tokens);
    }
    pages_.resize(static_cast<std::size_t>(count));
    std::iota(pages_.begin(), pages_.end(), 1);
    std::shuffle(pages_.begin(), pages_.end(), random.engine());
    device_pages_ = to_device(pages_);
    std::vector<HotRow> rows(shapes.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].device_pages = device_pages_.data() + first_page_[i];
      rows[i].hot_blocks = shapes[i].hot_blocks;
      rows[i].block_tokens = shapes[i].block_tokens;
      rows[i].ring_tokens = shapes[i].ring_tokens;
    }
    rows_ = to_device(rows);
  }

  [[nodiscard]] const HotRow* rows() const { return rows_.data(); }
  [[nodiscard]] std::int64_t pool_rows() const { return (static_cast<std::int64_t>(pages_.size()) + 2) * kPageTokens; }
  [[nodiscard]] const TableShape& shape(std::size_t i) const { return shapes_[i]; }

  [[nodiscard]] std::int64_t resident_row(std::size_t i, std::int64_t position) const { return row(i, 0, position); }
  [[nodiscard]] std::int64_t buffer_row(std::size_t i, std::int64_t at) const { return row(i, 0, at); }
  [[nodiscard]] std::int64_t ring_row(std::size_t i, std::int64_t position) const {
    return row(i, buffer_pages(shapes_[i]), position % shapes_[i].ring_tokens);
  }
  // Where the row of a new token goes.
  [[nodiscard]] std::int64_t new_row(std::size_t i, std::int64_t position) const {
    return shapes_[i].hot_blocks == 0 ? resident_row(i, position) : ring_row(i, position);
  }

 private:
  static std::int64_t buffer_pages(const TableShape& shape) {
    return pages_for_tokens(std::int64_t{shape.hot_blocks} * shape.block_tokens);
  }
  [[nodiscard]] std::int64_t row(std::size_t i, std::int64_t page, std::int64_t at) const {
    return std::int64_t{pages_.at(static_cast<std::size_t>(first_page_[i] + page + at / kPageTokens))} * kPageTokens +
           at % kPageTokens;
  }

  std::vector<TableShape> shapes_;
  std::vector<std::int64_t> first_page_;
  std::vector<std::int32_t> pages_;
  DeviceBuffer<std::int32_t> device_pages_;
  DeviceBuffer<HotRow> rows_;
};

}  // namespace hotset::kernels::cuda
