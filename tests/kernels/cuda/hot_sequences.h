// Random hot sequences for tests of the diff and the page I/O on the device: each has its own shape, position, churn
// and specification (sparse::HotBuffer) that runs beside the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/hot_row.h"
#include "sparse/hot_buffer.h"

namespace hotset::kernels::cuda {

inline std::uint64_t test_seed() {
  const char* text = std::getenv("HOTSET_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20'260'101;
}

class HotSequence {
 public:
  // `most_selected`: K. Positions start where about `spread` blocks exist.
  HotSequence(std::uint64_t seed, const sparse::HotBufferShape& shape, std::int64_t most_selected, std::int64_t spread)
      : random_(seed), buffer_(shape), most_selected_(most_selected), newest_(pick(0, spread * shape.block_tokens)) {}

  // The next step's selection; the specification has run when this returns. A padded step selects nothing, and the
  // specification stays as it is.
  void step(bool padded) {
    padded_ = padded;
    if (padded) {
      selected_.clear();
      diff_ = {};
      return;
    }
    newest_ += pick(0, 9) > 0 ? 1 : pick(0, 40);
    choose();
    buffer_.diff(selected_, newest_, diff_);
  }

  [[nodiscard]] const sparse::HotBufferShape& shape() const { return buffer_.shape(); }
  [[nodiscard]] const sparse::HotBuffer& buffer() const { return buffer_; }
  [[nodiscard]] const sparse::SparseDiff& diff() const { return diff_; }
  [[nodiscard]] const std::vector<std::int32_t>& selected() const { return selected_; }
  [[nodiscard]] std::int64_t newest() const { return newest_; }
  [[nodiscard]] bool padded() const { return padded_; }
  [[nodiscard]] std::int32_t length() const { return padded_ ? 0 : static_cast<std::int32_t>(newest_ + 1); }
  [[nodiscard]] std::int32_t ring_misses() const {
    return static_cast<std::int32_t>(std::ranges::count_if(
        diff_.misses, [](const sparse::Miss& miss) { return miss.source == sparse::MissSource::kRing; }));
  }

 private:
  std::int64_t pick(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }

  // 0: everything new, 1 and 2: most of the last selection again, 2: mixed with invalid and repeated entries, 3: short,
  // 4: as much as fits into K, which may be more than the buffer holds.
  void choose() {
    const std::int64_t blocks = newest_ / shape().block_tokens + 1;
    const std::int64_t kind = pick(0, 9) == 0 ? 4 : pick(0, 3);
    const std::int64_t whole = std::min<std::int64_t>(shape().hot_blocks, most_selected_);
    const std::int64_t size = kind == 4 ? most_selected_ : kind == 3 ? pick(0, whole) / 4 : whole;
    ++stamp_;
    seen_.resize(std::max(seen_.size(), static_cast<std::size_t>(blocks)), 0);
    selected_.clear();
    const std::int64_t stay = pick(50, 98);
    if (kind == 1 || kind == 2)
      for (const std::int32_t block : last_)
        if (pick(0, 99) < stay) add(block, size);
    for (std::int64_t tries = 0; tries < 2 * size; ++tries) add(static_cast<std::int32_t>(pick(0, blocks - 1)), size);
    if (pick(0, 1) == 0)
      std::ranges::sort(selected_);
    else
      std::ranges::shuffle(selected_, random_);
    last_ = selected_;
    if (kind == 2) spoil(blocks);
  }

  void add(std::int32_t block, std::int64_t size) {
    if (static_cast<std::int64_t>(selected_.size()) >= size || seen_[static_cast<std::size_t>(block)] == stamp_) return;
    seen_[static_cast<std::size_t>(block)] = stamp_;
    selected_.push_back(block);
  }

  void spoil(std::int64_t blocks) {
    const auto beyond = static_cast<std::int32_t>(blocks);
    const std::int32_t bad[] = {
        -1, -2, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), beyond, beyond + 1};
    for (std::int64_t i = pick(1, 6); i > 0; --i) {
      if (static_cast<std::int64_t>(selected_.size()) == most_selected_) selected_.pop_back();
      const bool repeat = pick(0, 1) == 0 && !selected_.empty();
      const std::int32_t entry =
          repeat ? selected_[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(selected_.size()) - 1))]
                 : bad[pick(0, 5)];
      selected_.insert(selected_.begin() + pick(0, static_cast<std::int64_t>(selected_.size())), entry);
    }
  }

  std::mt19937_64 random_;
  sparse::HotBuffer buffer_;
  sparse::SparseDiff diff_;
  std::int64_t most_selected_;
  std::int64_t newest_;
  bool padded_ = false;
  std::vector<std::int32_t> selected_, last_;
  std::vector<std::uint64_t> seen_;  // per block: the last step that added it
  std::uint64_t stamp_ = 0;
};

}  // namespace hotset::kernels::cuda
