#include "storage/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace hotset::storage {
namespace {

using Pool = PagePool<PageId>;

TEST(PagePool, ReservationsAreAllOrNothing) {
  Pool pool(5);
  EXPECT_TRUE(pool.try_reserve(3));
  EXPECT_EQ(pool.available(), 2);
  EXPECT_FALSE(pool.try_reserve(3));
  EXPECT_EQ(pool.available(), 2);
  EXPECT_TRUE(pool.try_reserve(2));
  EXPECT_TRUE(pool.try_reserve(0));
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.free(), 5);
}

TEST(PagePool, TakenPagesAreDistinctAndComeBack) {
  Pool pool(4);
  ASSERT_TRUE(pool.try_reserve(4));
  std::set<PageId> taken;
  for (int i = 0; i < 4; ++i) taken.insert(pool.take());
  EXPECT_EQ(taken.size(), 4U);
  EXPECT_EQ(taken.begin()->value(), 0);
  EXPECT_EQ(taken.rbegin()->value(), 3);
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.reserved(), 0);
  for (const PageId page : taken) pool.give_back(page);
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.available(), 4);
}

TEST(PagePool, UnusedReservationsComeBack) {
  Pool pool(4);
  ASSERT_TRUE(pool.try_reserve(3));
  const PageId page = pool.take();
  pool.unreserve(2);
  EXPECT_EQ(pool.available(), 3);
  pool.give_back(page);
  EXPECT_EQ(pool.available(), 4);
}

TEST(PagePool, AnEmptyPoolReservesNothing) {
  Pool pool(0);
  EXPECT_TRUE(pool.try_reserve(0));
  EXPECT_FALSE(pool.try_reserve(1));
}

// Pages that follow each other inside extents count as one range.
std::int64_t ranges_of(const std::vector<HostPage>& pages, std::int64_t extent) {
  std::int64_t ranges = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const bool goes_on = i > 0 && pages[i].value() == pages[i - 1].value() + 1;
    ranges += goes_on && pages[i].value() % extent != 0 ? 0 : 1;
  }
  return ranges;
}

TEST(PagePoolExtents, AreTwoMiBOfALayer) {
  KvGeometry latent{.layers = 61, .kv_heads = 1, .key_dim = 576, .value_dim = 512};
  latent.layout = KvGeometry::Layout::kLatent;
  latent.dtype = KvDType::kFp8;
  EXPECT_EQ(extent_pages_of(latent.page_bytes()), 64);  // of 41,984 bytes
  KvGeometry grouped{.layers = 32, .kv_heads = 8, .key_dim = 128, .value_dim = 128};
  grouped.dtype = KvDType::kBF16;
  EXPECT_EQ(extent_pages_of(grouped.page_bytes()), 8);  // of 256 KiB
  grouped.kv_heads = 128;
  EXPECT_EQ(extent_pages_of(grouped.page_bytes()), 1);
  EXPECT_EQ(extent_pages_of(0), 1 << 21);  // nothing is kept
}

TEST(PagePoolExtents, ASequenceGrowsInItsOwnExtents) {
  PagePool<HostPage> pool(24, 8);
  ASSERT_TRUE(pool.try_reserve(24));
  std::vector<HostPage> first, second;
  for (int i = 0; i < 9; ++i) {
    first.push_back(pool.take(first.empty() ? std::nullopt : std::optional(first.back())));
    if (i < 5) second.push_back(pool.take(second.empty() ? std::nullopt : std::optional(second.back())));
  }
  EXPECT_EQ(ranges_of(first, 8), 2);  // nine pages
  EXPECT_EQ(ranges_of(second, 8), 1);
  // No extent is free: the emptiest one is the first's second, with 7 of 8. It is shared half and half.
  const HostPage third = pool.take();
  EXPECT_EQ(third.value(), first.back().value() + 1 + 7 / 2);
  EXPECT_EQ(pool.take(first.back()).value(), first.back().value() + 1);
  EXPECT_EQ(pool.take(third).value(), third.value() + 1);
}

// A list goes on in the next extent as long as that is free, and leaves its pages so that another one does.
TEST(PagePoolExtents, ALongListIsOneRun) {
  PagePool<HostPage> pool(40, 8);
  ASSERT_TRUE(pool.try_reserve(40));
  for (int round = 0; round < 3; ++round) {
    std::vector<HostPage> list;
    for (int i = 0; i < 20; ++i) list.push_back(pool.take(list.empty() ? std::nullopt : std::optional(list.back())));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(list[static_cast<std::size_t>(i)].value(), i) << "round " << round;
    while (!list.empty()) {
      pool.give_back(list.back());
      list.pop_back();
    }
    ASSERT_TRUE(pool.try_reserve(20));
  }
  // Somebody has the first page of the third extent.
  std::vector<HostPage> list{pool.take()};
  for (int i = 1; i < 16; ++i) list.push_back(pool.take(list.back()));
  const HostPage other = pool.take();
  ASSERT_EQ(other.value(), 16);
  EXPECT_EQ(pool.take(list.back()).value(), 24);
}

TEST(PagePoolExtents, ThePoolsRestIsShorter) {
  PagePool<HostPage> pool(11, 8);
  ASSERT_TRUE(pool.try_reserve(11));
  std::set<HostPage> taken;
  std::optional<HostPage> last;
  for (int i = 0; i < 11; ++i) taken.insert(*(last = pool.take(last)));
  EXPECT_EQ(taken.size(), 11U);
  PagePool<HostPage> small(3, 512);
  ASSERT_TRUE(small.try_reserve(3));
  for (int i = 0; i < 3; ++i) taken.insert(small.take());
  EXPECT_EQ(small.free(), 0);
}

// Sequences come, grow by turns and go. Two pools that are asked the same give the same; a set knows what is taken.
class PagePoolChurn : public ::testing::TestWithParam<std::tuple<int, int, int>> {};  // pages, extent, percent used

TEST_P(PagePoolChurn, PagesAreDistinctComeBackAndLieTogether) {
  constexpr std::uint32_t kSeed = 20'260'101;
  const auto [pages, extent, percent] = GetParam();
  PagePool<HostPage> pool(pages, extent), twin(pages, extent);
  struct Growing {
    std::vector<HostPage> pages;
    int wanted = 0;
  };
  std::map<int, Growing> sequences;
  std::set<HostPage> taken;
  std::mt19937 random(kSeed);
  int next = 0, reserved = 0;
  std::int64_t ranges = 0, least_ranges = 0;
  for (int step = 0; step < 30'000; ++step) {
    const int wanted = 1 + static_cast<int>(random() % static_cast<std::uint32_t>(4 * extent));
    if (reserved + wanted <= pages * percent / 100) {
      ASSERT_TRUE(pool.try_reserve(wanted) && twin.try_reserve(wanted)) << "step " << step;
      reserved += wanted;
      sequences[next++].wanted = wanted;
    }
    auto at = sequences.begin();
    if (at == sequences.end()) continue;
    std::advance(at, random() % sequences.size());
    Growing& one = at->second;
    const int burst = random() % 4 == 0 ? one.wanted : 1;
    for (int i = 0; i < burst && static_cast<int>(one.pages.size()) < one.wanted; ++i) {
      const auto after = one.pages.empty() ? std::nullopt : std::optional(one.pages.back());
      const HostPage page = pool.take(after);
      ASSERT_EQ(twin.take(after), page) << "step " << step;
      ASSERT_TRUE(page.value() >= 0 && page.value() < pages);
      ASSERT_TRUE(taken.insert(page).second) << "step " << step << " page " << page.value();
      one.pages.push_back(page);
    }
    const bool full = static_cast<int>(one.pages.size()) == one.wanted;
    if (random() % (full ? 3 : 60) != 0) continue;
    ranges += ranges_of(one.pages, extent);
    least_ranges += ceil_div(static_cast<std::int64_t>(one.pages.size()), extent);
    pool.unreserve(one.wanted - static_cast<int>(one.pages.size()));
    twin.unreserve(one.wanted - static_cast<int>(one.pages.size()));
    for (const HostPage page : one.pages) {
      pool.give_back(page);
      twin.give_back(page);
      taken.erase(page);
    }
    reserved -= one.wanted;
    sequences.erase(at);
    ASSERT_EQ(pool.free(), pages - static_cast<int>(taken.size()));
  }
  const double factor = static_cast<double>(ranges) / static_cast<double>(least_ranges);
  RecordProperty("ranges_over_least", std::to_string(factor));
  std::printf("%d pages, extents of %d, at most %d %% used: %.2f times the least number of ranges\n", pages, extent,
              percent, factor);
  EXPECT_LT(factor, percent <= 70 ? 1.6 : 3.0);
  for (auto& [id, one] : sequences) {
    pool.unreserve(one.wanted - static_cast<int>(one.pages.size()));
    for (const HostPage page : one.pages) pool.give_back(page);
  }
  EXPECT_EQ(pool.available(), pages);
  // All that is free can be taken.
  ASSERT_TRUE(pool.try_reserve(pages));
  std::set<HostPage> all;
  for (int i = 0; i < pages; ++i) all.insert(pool.take());
  EXPECT_EQ(all.size(), static_cast<std::size_t>(pages));
}

INSTANTIATE_TEST_SUITE_P(Sizes, PagePoolChurn,
                         ::testing::Values(std::tuple{1024, 8, 70}, std::tuple{1024, 8, 100}, std::tuple{4000, 64, 70},
                                           std::tuple{4000, 64, 100}, std::tuple{300, 1, 100}));

TEST(PagePoolDeathTest, OurBugsAreCaught) {
  Pool pool(3);
  EXPECT_DEATH((void)pool.take(), "without a reservation");
  EXPECT_DEATH(pool.unreserve(1), "more unreserved than reserved");
  EXPECT_DEATH(pool.give_back(PageId{3}), "page of another pool");
  EXPECT_DEATH(pool.give_back(PageId{-1}), "page of another pool");
  EXPECT_DEATH(pool.give_back(PageId{0}), "given back twice");
  ASSERT_TRUE(pool.try_reserve(2));
  const PageId first = pool.take();
  (void)pool.take();
  pool.give_back(first);
  // The pool is not full, so only the bitmap knows.
  EXPECT_DEATH(pool.give_back(first), "given back twice");
}

}  // namespace
}  // namespace hotset::storage
