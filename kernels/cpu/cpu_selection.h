// Selection of the CPU backend: metadata rows, scores, top-k. Shares rows and tiles out to the threads; the division
// does not show in the bits.
//
// Owner: the backend. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {

class CpuSelection {
 public:
  CpuSelection(const IsaKernels& kernels, ThreadPool& pool);

  void store(const StoreMetadataParams& params);
  void index_scores(const IndexScoresParams& params);
  void low_rank_scores(const LowRankScoresParams& params);
  void block_scores(const BlockScoresParams& params);
  void top_k(const TopKParams& params);

 private:
  // Consecutive rows that share a page table, so that a tile is decoded once for all of them, and the tiles that the
  // longest one has. `flat`: tiles of the groups before it.
  struct Group {
    std::int64_t row_begin, row_end;
    std::int64_t tile_begin, tile_end;
    std::int64_t flat;
  };
  // Head logits of one row: tile t lies at place `first + t - tile_begin`.
  struct RowTiles {
    std::int64_t first;
    std::int64_t tile_begin, tile_end;
  };

  void start_groups();
  void add_group(std::int64_t row_begin, std::int64_t row_end, std::int64_t tile_begin, std::int64_t tile_end);
  // Groups of the rows [begin, end) by token pages; at most `most_rows` rows in one.
  void group_by_pages(const ScoredRows& rows, std::int64_t begin, std::int64_t end, std::int64_t most_rows);
  // body(group, tile, worker) for every tile of every group.
  template <class Body>
  void for_tiles(const Body& body);
  // The rows from `begin` on whose logits fit; sets row_tiles_ for them. tiles(row) gives {begin, end}.
  template <class Tiles>
  std::int64_t fit_rows(std::int64_t begin, std::int64_t end, std::int32_t heads, const Tiles& tiles);
  void reserve_scratch(std::int64_t floats);
  [[nodiscard]] float* scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)].data(); }
  [[nodiscard]] float* logits(std::int64_t row, std::int64_t tile, std::int32_t heads);
  [[nodiscard]] float* tile_max(std::int64_t row, std::int64_t tile, std::int32_t heads);

  void low_rank_batch(const LowRankScoresParams& params, std::int64_t begin, std::int64_t end);
  void block_batch(const BlockScoresParams& params, std::int64_t begin, std::int64_t end);
  void block_tile(const BlockScoresParams& params, std::int64_t row, std::int64_t tile, float* values);
  // From logits and tile maxima to scores: the mean over heads of their softmaxes. first and last bound the candidates.
  void softmax_mean(const ScoredRows& rows, std::int32_t heads, const std::int64_t* first, const std::int64_t* last);

  const IsaKernels& kernels_;
  ThreadPool& pool_;
  std::vector<AlignedBuffer<float>> scratch_;       // per thread
  std::vector<AlignedBuffer<std::uint32_t>> keys_;  // per thread, of top_k()
  std::vector<Group> groups_;
  std::int64_t flat_tiles_ = 0;
  std::int64_t batch_begin_ = 0;      // row of row_tiles_[0]
  std::vector<RowTiles> row_tiles_;   // of the rows of a batch
  AlignedBuffer<float> logits_;       // [place][heads][64]
  AlignedBuffer<float> tile_values_;  // [place][heads]: maxima, then sums
  AlignedBuffer<float> row_values_;   // [row of the batch][heads]: maxima, then factors
  AlignedBuffer<float> projected_;    // [row of the batch][heads][rank]
  std::vector<std::int64_t> runs_;    // of store(): first row of each page's run, then the end
};

}  // namespace hotset::kernels
