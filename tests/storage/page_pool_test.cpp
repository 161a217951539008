#include "storage/page_pool.h"

#include <gtest/gtest.h>

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
