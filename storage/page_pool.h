// Free pages of one tier, with reservations. Control plane only; it never touches the pages' memory.
// Thread: one owner (the cache manager).
#pragma once

#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/ids.h"

namespace hotset::storage {

// A sequence reserves everything that it may ever need when it is admitted and takes pages from its reservation as it
// grows, so take() cannot fail: that is how the pools never overcommit and never deadlock.
template <class Id>
class PagePool {
 public:
  explicit PagePool(std::int32_t pages) : total_(pages) {
    HS_CHECK(pages >= 0, "a pool has no negative size");
    free_.reserve(static_cast<std::size_t>(pages));
    taken_.assign(static_cast<std::size_t>(pages), false);
    for (std::int32_t page = pages; page-- > 0;) free_.push_back(Id{page});
  }

  [[nodiscard]] std::int32_t total() const { return total_; }
  [[nodiscard]] std::int32_t free() const { return static_cast<std::int32_t>(free_.size()); }
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
  // Takes one page out of an earlier reservation.
  [[nodiscard]] Id take() {
    HS_CHECK(reserved_ > 0 && !free_.empty(), "take() without a reservation");
    --reserved_;
    const Id page = free_.back();
    free_.pop_back();
    taken_[static_cast<std::size_t>(page.value())] = true;
    return page;
  }
  void give_back(Id page) {
    HS_CHECK(page.value() >= 0 && page.value() < total_, "page of another pool");
    HS_CHECK(taken_[static_cast<std::size_t>(page.value())], "page given back twice");
    taken_[static_cast<std::size_t>(page.value())] = false;
    free_.push_back(page);
  }

 private:
  std::int32_t total_;
  std::int32_t reserved_ = 0;
  std::vector<Id> free_;
  std::vector<bool> taken_;  // [page]
};

}  // namespace hotset::storage
