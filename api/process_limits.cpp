#include "api/process_limits.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "core/concat.h"
#include "core/log.h"

namespace hotset::api {
namespace {

// Connections beyond the limit, which still get /health, and all other files.
constexpr std::int64_t kOtherFiles = 128;
constexpr std::int64_t kLeastFiles = 2 * kOtherFiles;

extern "C" void end_after_bus_error(int) {
  constexpr char kWords[] =
      "A file that was being read became shorter or unreadable (the model, most likely): the server ends.\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kWords, sizeof(kWords) - 1);
  ::_exit(1);
}

}  // namespace

Result<std::int64_t> connections_under_file_limit(std::int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto files = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  if (files < kLeastFiles) {
    return Error{
        ErrorCode::kUnavailable,
        concat("This process may open ", files, " files, and a server needs at least ", kLeastFiles, " (ulimit -n)."),
        {}};
  }
  if (files - kOtherFiles < wanted) {
    log_warn("This process may open ", files, " files (ulimit -n): --max-connections becomes ", files - kOtherFiles);
  }
  return std::min(wanted, files - kOtherFiles);
}

Result<void> check_threads(std::int64_t count) {
  std::latch done(1);
  std::vector<std::thread> threads;
  bool all = true;
  try {
    threads.reserve(static_cast<std::size_t>(count));
    while (static_cast<std::int64_t>(threads.size()) < count) threads.emplace_back([&done] { done.wait(); });
  } catch (const std::system_error&) {
    all = false;
  }
  done.count_down();
  for (std::thread& thread : threads) thread.join();
  if (all) return {};
  return Error{ErrorCode::kUnavailable,
               concat("This process can start ", threads.size(), " more threads and needs ", count,
                      ": see ulimit -u and -v, and the pids limit of its control group."),
               {}};
}

void settle_signals() {
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  struct sigaction bus = {};
  bus.sa_handler = end_after_bus_error;
  ::sigaction(SIGBUS, &bus, nullptr);
}

}  // namespace hotset::api
