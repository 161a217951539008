// Free pages of one tier, with reservations. Control plane only; it never touches the pages' memory.
// Thread: one owner (the cache manager).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/check.h"
#include "core/ids.h"
#include "core/kv_geometry.h"

namespace hotset::storage {

// Pages of an extent: a power of two whose bytes are 2 MiB or more. Large copies find contiguous pieces of that size on
// both tiers, and a device's reads of the host pool, which run at the bus's speed inside few such ranges, find those.
[[nodiscard]] constexpr std::int32_t extent_pages_of(std::int64_t page_bytes) {
  constexpr std::int64_t kExtentBytes = std::int64_t{2} << 20;
  return static_cast<std::int32_t>(
      std::bit_ceil(static_cast<std::uint64_t>(ceil_div(kExtentBytes, std::max<std::int64_t>(1, page_bytes)))));
}

// A sequence reserves everything that it may ever need when it is admitted and takes pages from its reservation as it
// grows, so take() cannot fail: that is how the pools never overcommit and never deadlock.
//
// Pages come in extents of `extent_pages`, aligned. The pages of a list (a sequence's on the host, those of one of its
// layers on the device) follow each other inside an extent, and it goes on in a free extent, the next one if it can;
// where none is free, in the emptiest one, half way between its own and somebody else's next page. So an extent is
// nobody's: whatever is free can be taken. What is taken depends on the calls alone. A page costs a few steps, the
// first one of a run up to extent_pages. Given back from the last page to the first, a list leaves free extents in
// order.
template <class Id>
class PagePool {
 public:
  explicit PagePool(std::int32_t pages, std::int32_t extent_pages = 1)
      : total_(pages), extent_pages_(std::max(1, std::min(extent_pages, pages))), free_(pages) {
    HS_CHECK(pages >= 0 && extent_pages >= 1, "a pool has no negative size, and an extent has a page");
    taken_.assign(static_cast<std::size_t>(pages), false);
    extents_.resize(static_cast<std::size_t>(ceil_div(pages, extent_pages_)));
    first_.assign(static_cast<std::size_t>(extent_pages_) + 1, kNone);
    for (auto extent = static_cast<std::int32_t>(extents_.size()); extent-- > 0;) {
      extents_[index(extent)].free = end_of(extent) - begin_of(extent);
      link(extent);
    }
  }

  [[nodiscard]] std::int32_t total() const { return total_; }
  [[nodiscard]] std::int32_t extent_pages() const { return extent_pages_; }
  [[nodiscard]] std::int32_t free() const { return free_; }
  [[nodiscard]] std::int32_t reserved() const { return reserved_; }  // promised, not yet taken
  [[nodiscard]] std::int32_t available() const { return free() - reserved_; }

  // All or nothing.
  [[nodiscard]] bool try_reserve(std::int32_t pages) {
    HS_CHECK(pages >= 0, "reservation of a negative number of pages");
    if (pages > available()) return false;
    reserved_ += pages;
    return true;
  }
  void unreserve(std::int32_t pages) {
    HS_CHECK(pages >= 0 && pages <= reserved_, "more unreserved than reserved");
    reserved_ -= pages;
  }
  // Takes one page out of an earlier reservation. `after`: the list's last page, which the new one follows if it can.
  [[nodiscard]] Id take(std::optional<Id> after = std::nullopt) {
    HS_CHECK(reserved_ > 0 && free_ > 0, "take() without a reservation");
    const bool follows = after && may_follow(static_cast<std::int32_t>(after->value()) + 1);
    const std::int32_t page = follows ? static_cast<std::int32_t>(after->value()) + 1 : begin_of_run();
    --reserved_;
    --free_;
    change(page, true);
    return Id{page};
  }
  void give_back(Id page) {
    HS_CHECK(page.value() >= 0 && page.value() < total_, "page of another pool");
    HS_CHECK(taken_[static_cast<std::size_t>(page.value())], "page given back twice");
    ++free_;
    change(static_cast<std::int32_t>(page.value()), false);
  }

 private:
  static constexpr std::int32_t kNone = -1;
  // Extents with the same number of free pages are in a list, the last changed one first.
  struct Extent {
    std::int32_t free = 0;
    std::int32_t next = kNone, previous = kNone;
  };

  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }
  [[nodiscard]] std::int32_t begin_of(std::int32_t extent) const { return extent * extent_pages_; }
  [[nodiscard]] std::int32_t end_of(std::int32_t extent) const {
    return std::min(total_ - begin_of(extent), extent_pages_) + begin_of(extent);
  }
  // A free page; the first one of an extent only where nobody has any of it.
  [[nodiscard]] bool may_follow(std::int32_t page) const {
    if (page >= total_ || taken_[index(page)]) return false;
    const std::int32_t extent = page / extent_pages_;
    return page != begin_of(extent) || extents_[index(extent)].free == end_of(extent) - page;
  }

  // In the extent with most free pages: the begin of its longest free run, or the middle where a page before the run is
  // taken, since whoever has that may go on there.
  [[nodiscard]] std::int32_t begin_of_run() const {
    std::int32_t most = extent_pages_;
    while (first_[index(most)] == kNone) --most;  // ends: a page is free
    const std::int32_t extent = first_[index(most)];
    std::int32_t best = kNone, best_length = 0, length = 0;
    for (std::int32_t page = begin_of(extent); page < end_of(extent); ++page) {
      length = taken_[index(page)] ? 0 : length + 1;
      if (length <= best_length) continue;
      best_length = length;
      best = page + 1 - length;
    }
    return best == begin_of(extent) ? best : best + best_length / 2;
  }

  void change(std::int32_t page, bool taken) {
    const std::int32_t extent = page / extent_pages_;
    taken_[index(page)] = taken;
    unlink(extent);
    extents_[index(extent)].free += taken ? -1 : 1;
    link(extent);
  }
  void link(std::int32_t extent) {
    Extent& mine = extents_[index(extent)];
    std::int32_t& first = first_[index(mine.free)];
    mine.previous = kNone;
    mine.next = first;
    if (first != kNone) extents_[index(first)].previous = extent;
    first = extent;
  }
  void unlink(std::int32_t extent) {
    const Extent& mine = extents_[index(extent)];
    if (mine.next != kNone) extents_[index(mine.next)].previous = mine.previous;
    (mine.previous != kNone ? extents_[index(mine.previous)].next : first_[index(mine.free)]) = mine.next;
  }

  std::int32_t total_;
  std::int32_t extent_pages_;
  std::int32_t free_;
  std::int32_t reserved_ = 0;
  std::vector<bool> taken_;  // [page]
  std::vector<Extent> extents_;
  std::vector<std::int32_t> first_;  // [free pages]: the first extent that has so many
};

}  // namespace hotset::storage
