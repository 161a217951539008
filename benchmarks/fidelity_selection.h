// Several selection algorithms over one KV cache, as the fidelity benchmark needs them: the cache has one kind of
// metadata page, so each algorithm's metadata is a part of a larger one. What a selection holds of the true attention
// mass is measured where the selection is made: queries and cached keys are at hand there. Thread: the stream's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/kv_geometry.h"
#include "sparse/selection.h"
#include "sparse/sequence_kv.h"

namespace hotset::fidelity {

using Algorithm = std::shared_ptr<const sparse::SelectionAlgorithm>;

// Share of a query's softmax over all tokens that falls on its selection: mean over heads, layers and measured rows.
class MassMeter {
 public:
  // Rows are kGrouped float32. Rows whose length is a multiple of `every` are measured.
  MassMeter(const KvGeometry& rows, const std::byte* device_rows, std::int64_t every);

  // Measures this resident sequence from then on; it outlives the meter's use.
  void watch(const sparse::SequenceKv& kv) { watched_[kv.id] = {.kv = &kv}; }
  void measure(LayerId layer, const sparse::SelectionRow& row, const sparse::SelectionQueries& queries,
               std::span<const std::int32_t> blocks, std::int32_t block_tokens);
  // NaN: nothing was measured.
  [[nodiscard]] double mean(SequenceId sequence) const;

 private:
  struct Watched {
    const sparse::SequenceKv* kv = nullptr;
    double sum = 0;
    std::int64_t count = 0;
  };
  void score_all(const std::vector<PageId>& pages, const float* q, std::int32_t heads, float scale,
                 std::int64_t length);

  KvGeometry rows_;
  const std::byte* device_rows_;
  std::int64_t every_;
  std::unordered_map<SequenceId, Watched> watched_;
  std::vector<float> scores_;  // [heads, length]
};

// Writes the metadata of all algorithms, each at its own place of a page. It selects nothing itself.
class PackedMetadata final : public sparse::SelectionAlgorithm {
 public:
  // Algorithms of equal metadata share a part; their append() must write the same (low rank: one basis per rank).
  explicit PackedMetadata(std::span<const Algorithm> algorithms);

  [[nodiscard]] std::int64_t offset_of(const MetadataGeometry& metadata) const;  // bytes

  [[nodiscard]] std::string_view name() const override { return "packed"; }
  [[nodiscard]] std::int32_t block_tokens() const override { return 1; }
  [[nodiscard]] std::int64_t max_blocks() const override { return 0; }
  [[nodiscard]] std::int64_t forced_blocks() const override { return 0; }
  [[nodiscard]] std::int64_t window_tokens() const override { return 0; }
  // Of the right size; its kind only says that keys are wanted.
  [[nodiscard]] MetadataGeometry metadata() const override { return metadata_; }
  void append(LayerId layer, const sparse::MetadataRows& rows, kernels::Backend& backend) const override;
  void select(LayerId layer, std::span<const sparse::SelectionRow> rows, const sparse::SelectionQueries& queries,
              kernels::Backend& backend, sparse::SelectionScratch& scratch, sparse::SelectionList& out) const override;

 private:
  struct Part {
    Algorithm algorithm;
    std::int64_t offset = 0;
  };
  std::vector<Part> parts_;
  MetadataGeometry metadata_;
};

// The algorithm over its part of packed metadata, measured.
class MeasuredSelection final : public sparse::SelectionAlgorithm {
 public:
  MeasuredSelection(Algorithm algorithm, std::int64_t offset, std::shared_ptr<MassMeter> meter)
      : algorithm_(std::move(algorithm)), offset_(offset), meter_(std::move(meter)) {}

  [[nodiscard]] std::string_view name() const override { return algorithm_->name(); }
  [[nodiscard]] std::int32_t block_tokens() const override { return algorithm_->block_tokens(); }
  [[nodiscard]] std::int64_t max_blocks() const override { return algorithm_->max_blocks(); }
  [[nodiscard]] std::int64_t forced_blocks() const override { return algorithm_->forced_blocks(); }
  [[nodiscard]] std::int64_t window_tokens() const override { return algorithm_->window_tokens(); }
  [[nodiscard]] MetadataGeometry metadata() const override { return algorithm_->metadata(); }
  void select(LayerId layer, std::span<const sparse::SelectionRow> rows, const sparse::SelectionQueries& queries,
              kernels::Backend& backend, sparse::SelectionScratch& scratch, sparse::SelectionList& out) const override;

 private:
  Algorithm algorithm_;
  std::int64_t offset_;
  std::shared_ptr<MassMeter> meter_;
};

}  // namespace hotset::fidelity
