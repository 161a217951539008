#include "api/signal_watcher.h"

#include <pthread.h>
#include <signal.h>

#include <cstdlib>

namespace hotset::api {
namespace {

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher() {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { watch(); });
}

SignalWatcher::~SignalWatcher() {
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
  bool asked = false;
  for (;;) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    if (stopping_) return;
    if (asked || !orderly_) std::_Exit(128 + number);
    asked = true;
    first_.set_value(number);
  }
}

}  // namespace hotset::api
