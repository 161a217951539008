#include "actors/host_tier_core.h"

namespace hotset::actors {

std::int64_t HostTierCore::put(const std::vector<TierPage>& pages) {
  std::int64_t entered = 0;
  for (const TierPage& page : pages) {
    if (pages_.contains(page.identity)) continue;
    if (this->pages() >= capacity_) {
      ++refused_;
      continue;
    }
    pages_.emplace(page.identity, page.page);
    ++entered;
  }
  return entered;
}

std::vector<TierPage> HostTierCore::get(const std::vector<PageIdentity>& chain) {
  std::vector<TierPage> out;
  for (const PageIdentity& identity : chain) {
    const auto found = pages_.find(identity);
    if (found == pages_.end()) break;
    out.push_back({.identity = identity, .page = found->second});
  }
  hits_ += static_cast<std::int64_t>(out.size());
  misses_ += static_cast<std::int64_t>(chain.size() - out.size());
  return out;
}

std::int64_t HostTierCore::erase(const std::vector<PageIdentity>& identities) {
  std::int64_t forgotten = 0;
  for (const PageIdentity& identity : identities) forgotten += static_cast<std::int64_t>(pages_.erase(identity));
  return forgotten;
}

}  // namespace hotset::actors
