// What the tests of scores share: comparison with the CPU's, sequences of given lengths.
#pragma once

#include <cstring>

#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/selection/device_rows.h"

namespace hotset::kernels::cuda {

inline constexpr int kGrids[] = {0, 1, 3, 37, 400};

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// |score - expected| <= bound(row, position) everywhere, NaN where NaN is expected, canaries untouched. Returns the
// largest error.
template <class Bound>
double expect_close(const DeviceRows& rows, const std::vector<float>& got, const std::vector<float>& expected,
                    const Bound& bound, const char* what) {
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / rows.stride();
    const auto at = static_cast<std::int64_t>(i) % rows.stride();
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    const double error = got[i] == expected[i] ? 0.0 : std::fabs(static_cast<double>(got[i]) - expected[i]);
    const double allowed = expected[i] == RowTable::kCanary ? 0.0 : bound(row, at);
    if (!(error <= allowed)) {
      ADD_FAILURE() << what << ": row " << row << ", position " << at << ": " << got[i] << ", the CPU says "
                    << expected[i] << ", allowed " << allowed;
      return error;
    }
    most = std::max(most, error);
  }
  return most;
}

struct Sequences {
  std::vector<std::unique_ptr<SelectionBed>> beds;
  std::vector<DeviceRows::Row> rows;
};

// Sequences of these lengths; rows at their ends, one shared table, a padded row.
inline Sequences make_sequences(const MetadataGeometry& geometry, const std::vector<float>& basis,
                                const std::vector<std::int64_t>& lengths, Random& random) {
  Sequences out;
  const auto backend = make_cpu_backend(2);
  for (const std::int64_t length : lengths) {
    out.beds.push_back(std::make_unique<SelectionBed>(geometry, basis));
    out.beds.back()->append(*backend, random.normals(length * out.beds.back()->width()));
    out.rows.push_back({out.beds.back().get(), static_cast<std::int64_t>(out.rows.size()), length});
  }
  out.rows.push_back({nullptr, 0, 0});
  out.rows.push_back({out.beds[0].get(), 1, std::max<std::int64_t>(1, lengths[0] - 3)});
  return out;
}

// `batch` holds the scores of `rows`; scores_of(list) makes those of another batch. Each row alone, and all of them in
// the opposite order, must have the bits that they have in `batch`.
template <class ScoresOf>
void expect_same_bits_in_other_batches(const std::vector<DeviceRows::Row>& rows, std::int64_t stride,
                                       const std::vector<float>& batch, const ScoresOf& scores_of) {
  const auto row_of = [&](const std::vector<float>& all, std::size_t row) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row) * stride;
    return std::vector<float>(begin, begin + stride);
  };
  const std::vector<float> reversed = scores_of({rows.rbegin(), rows.rend()});
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].bed == nullptr) continue;
    const std::vector<float> expected = row_of(batch, row);
    ASSERT_TRUE(same(scores_of({rows[row]}), expected)) << "row " << row << " alone";
    ASSERT_TRUE(same(row_of(reversed, rows.size() - 1 - row), expected)) << "row " << row << " in the opposite order";
  }
}

}  // namespace hotset::kernels::cuda
