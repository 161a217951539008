#include "api/signal_watcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

namespace hotset::api {
namespace {

using namespace std::chrono_literals;

// A thread that does not block the signals, as profilers and preloaded libraries start before main().
void start_older_thread() {
  std::thread([] {
    for (;;) std::this_thread::sleep_for(1h);
  }).detach();
}

TEST(SignalWatcherDeathTest, ASignalBeforeTheServerIsReadyEndsTheProcess) {
  EXPECT_EXIT(
      {
        const SignalWatcher watcher(1h);
        kill(getpid(), SIGINT);
        std::this_thread::sleep_for(1h);
      },
      testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(SignalWatcherDeathTest, AnOlderThreadPassesSignalsOn) {
  EXPECT_EXIT(
      {
        start_older_thread();
        const SignalWatcher watcher(1h);
        kill(getpid(), SIGTERM);  // to the older thread: the only one that does not block it
        std::this_thread::sleep_for(1h);
      },
      testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(SignalWatcherDeathTest, TheFirstSignalAsksForAnOrderlyEndAndALaterOneEndsAtOnce) {
  EXPECT_EXIT(
      {
        start_older_thread();
        SignalWatcher watcher(1h);
        std::thread([] {
          std::this_thread::sleep_for(500ms);  // until wait() has begun
          for (;; std::this_thread::sleep_for(1s)) kill(getpid(), SIGTERM);
        }).detach();
        std::cerr << "orderly end by " << watcher.wait() << std::endl;
        std::this_thread::sleep_for(1h);
      },
      testing::ExitedWithCode(128 + SIGTERM), "orderly end by 15");
}

}  // namespace
}  // namespace hotset::api
