#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

namespace hotset::kernels {
namespace {

TEST(ThreadPool, EveryTaskRunsOnceInEveryOfManyJobs) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int job = 0; job < 3000; ++job) {
      const std::int64_t tasks = job % 23;
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      std::atomic<bool> bad_worker{false};
      pool.run(tasks, [&](std::int64_t task, int worker) {
        if (worker < 0 || worker >= threads) bad_worker = true;
        runs[static_cast<std::size_t>(task)].fetch_add(1);
      });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
      ASSERT_FALSE(bad_worker);
    }
  }
}

// A worker that has just done the last task of a short job looks at it again while a longer one is being set up: it
// must not take a task of either. The jobs follow each other at once, because that is when it would.
TEST(ThreadPool, ALateWorkerTakesNoTaskOfALongerJobThatFollows) {
  constexpr int kLongest = 48;
  for (const int threads : {2, 3, 4}) {
    ThreadPool pool(threads);
    std::atomic<std::int64_t> runs{0};
    std::int64_t expected = 0;
    for (int job = 0; job < 200'000; ++job) {
      const int tasks = job % 2 == 0 ? 2 : kLongest;
      pool.run(tasks, [&](std::int64_t, int) { runs.fetch_add(1, std::memory_order_relaxed); });
      expected += tasks;
      ASSERT_EQ(runs.load(std::memory_order_relaxed), expected) << "job " << job << ", " << threads << " threads";
    }
  }
}

TEST(ThreadPool, PlainWritesAreSeenAfterwards) {
  ThreadPool pool(3);
  std::vector<std::int64_t> out(1000);
  for (std::int64_t job = 1; job <= 500; ++job) {
    pool.run(1000, [&](std::int64_t task, int) { out[static_cast<std::size_t>(task)] += task * job; });
  }
  for (std::int64_t i = 0; i < 1000; ++i) ASSERT_EQ(out[static_cast<std::size_t>(i)], i * 500 * 501 / 2);
}

// Workers wake for the job while the pool is being destroyed.
TEST(ThreadPool, APoolEndsRightBehindAJob) {
  for (int pool = 0; pool < 20'000; ++pool) {
    ThreadPool threads(3);
    std::atomic<int> done{0};
    threads.run(2, [&](std::int64_t, int) { ++done; });
    ASSERT_EQ(done.load(), 2);
  }
}

TEST(ThreadPool, WorkersWithoutWorkCanBeJoined) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(4);
    if (i % 2 == 0) pool.run(8, [](std::int64_t, int) {});
  }
}

}  // namespace
}  // namespace hotset::kernels
