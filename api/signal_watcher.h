// SIGTERM and SIGINT as an ordinary wait. The first one asks for an orderly end, a second one (or one before the server
// is ready for orderly ends) ends the process at once, and so does an orderly end that takes too long.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace hotset::api {

// Make it before any other thread, so that all of them leave the signals to it; a thread that is older passes them on.
// One per process.
class SignalWatcher {
 public:
  // `limit`: from the first signal to the end of the process; past it the process ends with exit code 1, whatever
  // hangs.
  explicit SignalWatcher(std::chrono::milliseconds limit);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // Blocks until the first signal and returns its number. Before this call a signal ends the process.
  int wait();

 private:
  void watch();

  const std::chrono::milliseconds limit_;
  std::atomic<bool> orderly_{false};
  std::atomic<bool> stopping_{false};
  std::promise<int> first_;
  std::thread thread_;
};

}  // namespace hotset::api
