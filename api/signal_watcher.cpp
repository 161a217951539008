#include "api/signal_watcher.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "core/log.h"

namespace hotset::api {
namespace {

// What sends a signal to a process and to its group sends it twice.
constexpr std::chrono::milliseconds kRepeats{300};
constexpr std::chrono::milliseconds kLastWords{200};

constexpr int kWatched[] = {SIGTERM, SIGINT};

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kWatched) sigaddset(&set, number);
  return set;
}

// The watcher's thread, for forward(); one that has ended is no longer found.
std::atomic<pid_t> watching{0};

// Runs in threads that were there before the watcher, such as those of a preloaded profiler: they do not block the
// signals, and the kernel prefers them.
void forward(int number) { syscall(SYS_tgkill, getpid(), watching.load(), number); }

// The next signal's number, or 0 when none came before the deadline.
int next_signal(const sigset_t& set, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return 0;
    const timespec wait{.tv_sec = left.count() / 1000, .tv_nsec = left.count() % 1000 * 1'000'000};
    const int number = sigtimedwait(&set, nullptr, &wait);
    if (number > 0) return number;
  }
}

}  // namespace

SignalWatcher::SignalWatcher(std::chrono::milliseconds limit) : limit_(limit) {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::promise<pid_t> id;
  thread_ = std::thread([&] {
    id.set_value(gettid());
    watch();
  });
  watching = id.get_future().get();
  struct sigaction action = {};
  action.sa_handler = forward;
  action.sa_flags = SA_RESTART;
  for (const int number : kWatched) sigaction(number, &action, nullptr);
}

SignalWatcher::~SignalWatcher() {
  for (const int number : kWatched) ::signal(number, SIG_DFL);
  stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

int SignalWatcher::wait() {
  orderly_ = true;
  return first_.get_future().get();
}

void SignalWatcher::watch() {
  const sigset_t set = watched();
  int number = 0;
  while (sigwait(&set, &number) != 0) {
  }
  if (stopping_) return;
  if (!orderly_) std::_Exit(128 + number);
  first_.set_value(number);
  const auto first = std::chrono::steady_clock::now();
  do {
    number = next_signal(set, first + kRepeats);
    if (stopping_) return;
  } while (number > 0);
  number = next_signal(set, first + limit_);
  if (stopping_) return;
  if (number > 0) std::_Exit(128 + number);
  // By another thread: the log itself may be what hangs.
  std::thread([] {
    log_error("The server did not end in time after the signal: something hangs. The process ends now.");
  }).detach();
  std::this_thread::sleep_for(kLastWords);
  std::_Exit(1);
}

}  // namespace hotset::api
