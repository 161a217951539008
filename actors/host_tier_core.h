// The plain class behind the host TierStore: where the complete pages of the host pool lie, by identity. It keeps books
// and moves no bytes: the stream writes rows through to the pool before their page is entered here.
// Thread: one owner.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "actors/tier_page.h"

namespace hotset::actors {

class HostTierCore {
 public:
  explicit HostTierCore(std::int64_t capacity_pages) : capacity_(capacity_pages) {}

  // Pages entered. One whose identity is there keeps its first place; when the tier is full the rest is refused, which
  // costs later hits, nothing else.
  std::int64_t put(const std::vector<TierPage>& pages);
  // The leading pages of the chain that are there, in its order.
  [[nodiscard]] std::vector<TierPage> get(const std::vector<PageIdentity>& chain);
  [[nodiscard]] bool contains(const PageIdentity& identity) const { return pages_.contains(identity); }
  // Pages forgotten; unknown identities are ignored.
  std::int64_t erase(const std::vector<PageIdentity>& identities);

  [[nodiscard]] std::int64_t pages() const { return static_cast<std::int64_t>(pages_.size()); }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t refused() const { return refused_; }
  [[nodiscard]] std::int64_t hits() const { return hits_; }
  [[nodiscard]] std::int64_t misses() const { return misses_; }
  [[nodiscard]] bool healthy() const { return pages() <= capacity_; }

 private:
  std::int64_t capacity_;
  std::int64_t refused_ = 0;
  std::int64_t hits_ = 0;    // pages found by get()
  std::int64_t misses_ = 0;  // pages asked for and not found
  std::unordered_map<PageIdentity, HostPage> pages_;
};

}  // namespace hotset::actors
