#include "kernels/cpu/thread_pool.h"

#include <chrono>

#include "core/check.h"

namespace hotset::kernels {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerYield = 32;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True once ready() holds; false after kSpin. Yields now and then, so that a neighbour on the same core gets it.
template <class Ready>
bool spin_until(const Ready& ready) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerYield; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < give_up);
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  HS_CHECK(threads >= 1, "a pool has at least the caller's thread");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { worker_loop(worker); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(std::int64_t tasks, Function function, void* context) {
  HS_CHECK(tasks >= 0 && tasks < (std::int64_t{1} << 31), "too many tasks");
  if (workers_.empty() || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) function(context, task, 0);
    return;
  }
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  tasks_.store(static_cast<std::uint32_t>(tasks), std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  ticket_.store(std::uint64_t{epoch} << 32 | static_cast<std::uint64_t>(tasks), std::memory_order_release);
  epoch_.store(epoch, std::memory_order_seq_cst);
  epoch_.notify_all();

  take_tasks(epoch, 0);
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == static_cast<std::uint32_t>(tasks); };
  while (!spin_until(finished)) {
    const std::uint32_t seen = done_.load(std::memory_order_acquire);
    if (seen != static_cast<std::uint32_t>(tasks)) done_.wait(seen, std::memory_order_acquire);
  }
}

void ThreadPool::take_tasks(std::uint32_t epoch, int worker) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (true) {
    // Whether a task is left must be told by the ticket alone: a late worker may look while the next job is being
    // written. The next job is written only when this one's last task is done, so when the exchange below succeeds with
    // a task left, the three values belong to `epoch`.
    const auto left = static_cast<std::uint32_t>(ticket);
    if (static_cast<std::uint32_t>(ticket >> 32) != epoch || left == 0) return;
    const Function function = function_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const std::uint32_t tasks = tasks_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    function(context, tasks - left, worker);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker_loop(int worker) {
  std::uint32_t seen = 0;
  while (true) {
    const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    while (!spin_until(changed)) epoch_.wait(seen, std::memory_order_acquire);
    // In this order: the destructor stops, then counts. A worker that has seen its count would wait for ever for
    // another.
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    take_tasks(seen, worker);
  }
}

}  // namespace hotset::kernels
