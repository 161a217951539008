// A pool for short parallel regions: a decode step has some 250 of them, each tens of microseconds long.
//
// The caller works too and never waits for a worker that has not started: it waits only for tasks that a worker has
// taken. So a worker that lost its core to another process costs balance, not a time slice. An idle worker spins for
// about 50 us (yielding in between), then sleeps in the kernel.
//
// Owner: the backend. One thread calls run() at a time, and not from inside a task. The destructor joins.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace hotset::kernels {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1, the caller's included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, worker) for every task in [0, tasks), tasks < 2^31; worker is in [0, threads()) and runs one task
  // at a time. Returns when all are done. The body must not throw. Tasks are taken in ascending order.
  template <class Body>
  void run(std::int64_t tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        tasks, [](void* context, std::int64_t task, int worker) { (*static_cast<Plain*>(context))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, std::int64_t task, int worker);

  void run_erased(std::int64_t tasks, Function function, void* context);
  void worker_loop(int worker);
  void take_tasks(std::uint32_t epoch, int worker);

  // The job. Written only between jobs; atomic because a late worker may still look at it (and then fails its
  // exchange).
  std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<std::uint32_t> tasks_{0};

  alignas(64) std::atomic<std::uint64_t> ticket_{0};  // epoch << 32 | tasks not yet taken
  alignas(64) std::atomic<std::uint32_t> done_{0};    // finished tasks of this epoch
  alignas(64) std::atomic<std::uint32_t> epoch_{0};   // what sleeping workers wait on
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace hotset::kernels
