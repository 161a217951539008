// Host: batches of at most kMostLaunchRows rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/selection/scored_pages.h"

namespace hotset::kernels::cuda {

// launch(rows) for consecutive parts; pointers are moved on. Where query_rows is null the queries must be moved on too,
// by rows.lengths - all.lengths.
template <class Launch>
void for_row_batches(const ScoredPages& all, const Launch& launch) {
  for (std::int64_t row = 0; row < all.rows; row += kMostLaunchRows) {
    ScoredPages rows = all;
    rows.rows = std::min(kMostLaunchRows, all.rows - row);
    rows.pages += row * all.page_stride;
    if (rows.query_rows != nullptr) rows.query_rows += row;
    rows.lengths += row;
    if (rows.k != nullptr) rows.k += row;
    rows.scores += row * all.stride;
    launch(rows);
  }
}

}  // namespace hotset::kernels::cuda
