#include "sparse/replay.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "sparse/hot_buffer.h"

namespace hotset::sparse {
namespace {

// What a row needs, whatever the size of the buffer and the policy.
struct RowUses {
  std::int32_t placed = 0;  // selected blocks outside the ring: all of them are in the buffer at once
  std::int32_t slack = 0;   // those of them that the ring still holds
  std::size_t ends = 0;     // where the row's entries end in `next_miss`
};
struct SeriesUses {
  std::vector<RowUses> rows;
  // For each placed block: the row that selects it next, when that would be a counted miss; else kNone.
  std::vector<std::int32_t> next_miss;
  std::int64_t distinct = 0;  // placed blocks of all rows together
};
constexpr std::int32_t kNone = -1;

// From the last row to the first, so that each use finds the next one; the entries are turned round at the end.
SeriesUses find_uses(const SelectionSeries& series, const HotBufferShape& shape, std::int64_t skip) {
  SeriesUses uses;
  uses.rows.resize(series.rows());
  std::unordered_map<std::int32_t, std::int32_t> next_use;  // by block; kNone: a use that costs nothing
  for (std::size_t i = series.rows(); i-- > 0;) {
    RowUses& row = uses.rows[i];
    const std::int64_t newest = series.positions[i];
    for (const std::int32_t block : series.row(i)) {
      if (shape.overlaps_newest(block, newest)) continue;
      const bool in_slack = shape.in_ring(block, newest);
      const bool counted = static_cast<std::int64_t>(i) >= skip;
      const auto [use, first] = next_use.try_emplace(block, kNone);
      uses.next_miss.push_back(first ? kNone : use->second);
      use->second = counted && !in_slack ? static_cast<std::int32_t>(i) : kNone;
      ++row.placed;
      row.slack += in_slack ? 1 : 0;
    }
  }
  uses.distinct = static_cast<std::int64_t>(next_use.size());
  std::ranges::reverse(uses.next_miss);
  std::size_t end = 0;
  for (RowUses& row : uses.rows) row.ends = end += static_cast<std::size_t>(row.placed);
  return uses;
}

// One series under one policy: each row's counts go to `take(row, misses, ring copies)`.
using TakeRow = std::function<void(std::size_t row, std::int64_t misses, std::int64_t ring_copies)>;

void run_lru(const SelectionSeries& series, const HotBufferShape& shape, const TakeRow& take) {
  HotBuffer buffer(shape);
  SparseDiff diff;
  for (std::size_t i = 0; i < series.rows(); ++i) {
    buffer.diff(series.row(i), series.positions[i], diff);
    const auto from_host = std::ranges::count(diff.misses, MissSource::kHost, &Miss::source);
    take(i, from_host, static_cast<std::int64_t>(diff.misses.size()) - from_host);
  }
}

// A miss is saved only by keeping the block from its last use to this one, which takes one slot in every row between,
// where H less the row's own blocks are there. So this is a choice of most intervals under a capacity; going through
// the rows in order and, where too many are kept, giving up the one that ends last is optimal (Belady's rule). Only the
// rows where intervals end matter, not the blocks.
void run_belady(const SeriesUses& uses, std::int64_t hot_blocks, const TakeRow& take) {
  std::vector<std::int32_t> kept_for(uses.rows.size());  // per row: intervals kept that end there
  std::priority_queue<std::int32_t> ends;                // rows where kept_for > 0, and some where it no longer is
  std::int64_t kept = 0;
  std::size_t entry = 0;
  for (std::size_t i = 0; i < uses.rows.size(); ++i) {
    const RowUses& row = uses.rows[i];
    kept -= kept_for[i];
    take(i, row.placed - row.slack - kept_for[i], row.slack);
    while (kept > hot_blocks - row.placed) {
      const auto last = static_cast<std::size_t>(ends.top());
      if (kept_for[last] == 0) {
        ends.pop();
        continue;
      }
      --kept_for[last];
      --kept;
    }
    for (; entry < row.ends; ++entry) {
      const std::int32_t next = uses.next_miss[entry];
      if (next == kNone) continue;
      ++kept;
      if (kept_for[static_cast<std::size_t>(next)]++ == 0) ends.push(next);
    }
  }
}

struct Run {
  ReplayRun result;
  std::map<LayerId, ReplayCounts> layers;
  std::vector<std::int64_t> row_misses;
};

void run_series(const SelectionSeries& series, const ReplayOptions& options, const HotBufferShape& ring,
                std::vector<Run>& runs) {
  const SeriesUses uses = find_uses(series, ring, options.skip);
  for (Run& run : runs) {
    // More slots than blocks change nothing, and a size from the command line may be huge.
    HotBufferShape shape = ring;
    shape.hot_blocks = static_cast<std::int32_t>(std::clamp<std::int64_t>(
        ceil_div(run.result.hot_buffer_tokens, series.block_tokens), 1, std::max<std::int64_t>(uses.distinct, 1)));
    ReplayCounts& counts = run.layers[series.layer];
    const auto take = [&](std::size_t row, std::int64_t misses, std::int64_t ring_copies) {
      if (static_cast<std::int64_t>(row) < options.skip) return;
      ++counts.rows;
      counts.selected += static_cast<std::int64_t>(series.row(row).size());
      counts.misses += misses;
      counts.ring_copies += ring_copies;
      run.row_misses.push_back(misses);
    };
    if (run.result.policy == ReplayPolicy::kLru)
      run_lru(series, shape, take);
    else
      run_belady(uses, shape.hot_blocks, take);
  }
}

// Entries that two ascending selections have in common.
std::int64_t common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  std::int64_t count = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) ++count;
    const bool step_a = a[i] <= b[j];
    const bool step_b = b[j] <= a[i];
    i += step_a ? 1 : 0;
    j += step_b ? 1 : 0;
  }
  return count;
}

struct Share {
  std::int64_t of = 0;
  std::int64_t in_common = 0;

  void add(std::span<const std::int32_t> row, std::span<const std::int32_t> other) {
    of += static_cast<std::int64_t>(row.size());
    in_common += common(row, other);
  }
  [[nodiscard]] double value() const {
    return of == 0 ? std::numeric_limits<double>::quiet_NaN()
                   : static_cast<double>(in_common) / static_cast<double>(of);
  }
};

class Locality {
 public:
  // Series in the history's order: a sequence's layers follow each other.
  void add(const SelectionSeries& series) {
    Shares& shares = layers_[series.layer];
    for (std::size_t i = 1; i < series.rows(); ++i) shares.kept.add(series.row(i), series.row(i - 1));
    if (before_.sequence == series.sequence && before_.layer.value() + 1 == series.layer.value() &&
        before_.block_tokens == series.block_tokens)
      add_shared(series, shares.shared);
    before_ = series;
  }

  [[nodiscard]] std::vector<LayerLocality> result() const {
    std::vector<LayerLocality> out;
    for (const auto& [layer, shares] : layers_) out.push_back({layer, shares.kept.value(), shares.shared.value()});
    return out;
  }

 private:
  struct Shares {
    Share kept;
    Share shared;
  };

  void add_shared(const SelectionSeries& series, Share& shared) const {
    std::size_t other = 0;
    for (std::size_t i = 0; i < series.rows(); ++i) {
      while (other < before_.rows() && before_.positions[other] < series.positions[i]) ++other;
      if (other == before_.rows()) return;
      if (before_.positions[other] == series.positions[i]) shared.add(series.row(i), before_.row(other));
    }
  }

  std::map<LayerId, Shares> layers_;
  SelectionSeries before_;
};

// Nearest rank.
std::int64_t percentile(std::vector<std::int64_t>& values, std::int64_t percent) {
  if (values.empty()) return 0;
  const auto rank = ceil_div(percent * static_cast<std::int64_t>(values.size()), 100);
  const auto at = values.begin() + std::max<std::int64_t>(rank, 1) - 1;
  std::ranges::nth_element(values, at);
  return *at;
}

ReplayRun finish(Run& run) {
  for (const auto& [layer, counts] : run.layers) run.result.layers.push_back({layer, counts});
  run.result.median_misses = percentile(run.row_misses, 50);
  run.result.p99_misses = percentile(run.row_misses, 99);
  return std::move(run.result);
}

}  // namespace

std::string_view replay_policy_name(ReplayPolicy policy) { return policy == ReplayPolicy::kLru ? "lru" : "belady"; }

Result<ReplayResult> replay(const SelectionHistory& history, const ReplayOptions& options) {
  for (const std::int64_t tokens : options.hot_buffer_tokens)
    if (tokens < history.budget_tokens())
      return invalid_argument(concat("--hot-buffer of ", tokens, " tokens is less than the largest selection of ",
                                     history.budget_tokens(), " tokens"),
                              "--hot-buffer");
  std::vector<Run> runs;
  for (const ReplayPolicy policy : options.policies)
    for (const std::int64_t tokens : options.hot_buffer_tokens) runs.push_back({{policy, tokens, {}, 0, 0}, {}, {}});

  Locality locality;
  Result<void> done;
  history.for_each([&](const SelectionSeries& series) {
    if (!done) return;
    const auto ring = make_hot_buffer_shape(1, series.block_tokens, options.hot_ring);
    if (!ring) {
      done = ring.error();
      return;
    }
    run_series(series, options, ring.value(), runs);
    locality.add(series);
  });
  if (!done) return done.error();

  ReplayResult result;
  for (Run& run : runs) result.runs.push_back(finish(run));
  result.locality = locality.result();
  return result;
}

}  // namespace hotset::sparse
