#include "kernels/cuda/page_pieces.h"

#include <algorithm>

#include "core/kv_geometry.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

// Row `row` of a table of pages, and how many rows follow in its page.
std::int64_t row_of(const std::int32_t* pages, std::int64_t row) {
  return std::int64_t{pages[row / kPageTokens]} * kPageTokens + row % kPageTokens;
}
std::int64_t left_in_page(std::int64_t row) { return kPageTokens - row % kPageTokens; }

class Splitter {
 public:
  Splitter(std::byte* device_rows, std::int64_t row_bytes, std::int64_t least_bytes)
      : device_rows_(device_rows), row_bytes_(row_bytes), least_bytes_(least_bytes) {}

  // Rows that lie together on both sides, in one page of each.
  void add(const RowRun& run, std::int64_t on_device) {
    std::byte* const device = device_rows_ + row_of(run.device_pages, on_device) * row_bytes_;
    std::byte* const host = run.host_rows + row_of(run.host_pages, run.first_position) * row_bytes_;
    if (piece_.device + piece_.bytes != device || piece_.host + piece_.bytes != host) finish();
    if (piece_.bytes == 0) {
      piece_.device = device;
      piece_.host = host;
    }
    piece_.bytes += run.rows * row_bytes_;
    parts_.push_back(run);
  }
  void finish() {
    if (piece_.bytes >= least_bytes_) {
      out_.pieces.push_back(piece_);
    } else {
      out_.rest.insert(out_.rest.end(), parts_.begin(), parts_.end());
    }
    piece_ = {};
    parts_.clear();
  }
  [[nodiscard]] SplitRuns take() {
    finish();
    return std::move(out_);
  }

 private:
  std::byte* device_rows_;
  std::int64_t row_bytes_, least_bytes_;
  ContiguousPiece piece_;
  std::vector<RowRun> parts_;  // of the piece
  SplitRuns out_;
};

}  // namespace

SplitRuns split_runs(std::span<const RowRun> runs, std::byte* device_rows, std::int64_t row_bytes,
                     std::int64_t least_bytes) {
  Splitter splitter(device_rows, row_bytes, std::max<std::int64_t>(least_bytes, 1));
  for (const RowRun& run : runs) {
    for (std::int64_t done = 0; done < run.rows;) {
      const std::int64_t position = run.first_position + done;
      const std::int64_t on_device = run.ring_tokens > 0 ? position % run.ring_tokens : position;
      std::int64_t rows = std::min({run.rows - done, left_in_page(position), left_in_page(on_device)});
      if (run.ring_tokens > 0) rows = std::min(rows, run.ring_tokens - on_device);
      RowRun part = run;
      part.first_position = position;
      part.rows = static_cast<std::int32_t>(rows);
      splitter.add(part, on_device);
      done += rows;
    }
  }
  return splitter.take();
}

void copy_pieces(std::span<const ContiguousPiece> pieces, bool to_host, Stream stream) {
  if (pieces.empty()) return;
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<std::size_t> sizes;
  for (const ContiguousPiece& piece : pieces) {
    targets.push_back(to_host ? piece.host : piece.device);
    sources.push_back(to_host ? piece.device : piece.host);
    sizes.push_back(static_cast<std::size_t>(piece.bytes));
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  HOTSET_CUDA_CHECK(
      cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), sizes.size(), &attributes, &first, 1, stream));
}

}  // namespace hotset::kernels::cuda
