#include "api/process_limits.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

namespace hotset::api {
namespace {

// Each in a process of its own: limits that are lowered stay.
[[noreturn]] void end_with(const std::string& words) {
  std::cerr << words << std::flush;
  std::_Exit(3);
}

void limit(__rlimit_resource resource, rlim_t value) {
  const rlimit both{.rlim_cur = value, .rlim_max = value};
  if (setrlimit(resource, &both) != 0) end_with("setrlimit fails");
}

std::string connections(rlim_t files, std::int64_t wanted) {
  limit(RLIMIT_NOFILE, files);
  const auto found = connections_under_file_limit(wanted);
  return found ? std::to_string(found.value()) : found.error().message;
}

TEST(ProcessLimits, ConnectionsFitUnderTheLimitOfFiles) {
  EXPECT_EXIT(end_with(connections(2000, 500)), testing::ExitedWithCode(3), "^500$");
  EXPECT_EXIT(end_with(connections(1000, 4096)), testing::ExitedWithCode(3), "872$");
  EXPECT_EXIT(end_with(connections(256, 4096)), testing::ExitedWithCode(3), "128$");
  EXPECT_EXIT(end_with(connections(64, 4096)), testing::ExitedWithCode(3), "may open 64 files.*ulimit -n");
}

std::int64_t address_space() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(ProcessLimits, ThreadsAreTriedBeforehand) {
  EXPECT_TRUE(check_threads(40).ok());
  const auto in_little_memory = [] {
    limit(RLIMIT_AS, static_cast<rlim_t>(address_space()) + (200U << 20));
    const auto found = check_threads(5000);
    return found ? std::string("all") : found.error().message;
  };
  EXPECT_EXIT(end_with(in_little_memory()), testing::ExitedWithCode(3), "more threads and needs 5000.*pids limit");
}

void read_a_file_that_is_cut() {
  settle_signals();
  std::FILE* const file = std::tmpfile();
  const int descriptor = fileno(file);
  if (ftruncate(descriptor, 8192) != 0) return;
  const auto* const bytes =
      static_cast<const volatile char*>(mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, descriptor, 0));
  if (bytes == MAP_FAILED || ftruncate(descriptor, 0) != 0) return;
  end_with(bytes[5000] == 0 ? "read" : "read something");
}

TEST(ProcessLimits, AFileThatIsCutEndsTheServerWithAMessage) {
  EXPECT_EXIT(read_a_file_that_is_cut(), testing::ExitedWithCode(1), "became shorter");
}

TEST(ProcessLimits, AReaderThatHasGoneFailsTheWrite) {
  const auto write_to_nobody = [] {
    settle_signals();
    int ends[2] = {};
    if (pipe(ends) != 0) return std::string("pipe fails");
    close(ends[0]);
    return write(ends[1], "x", 1) < 0 ? std::string("refused") : std::string("written");
  };
  EXPECT_EXIT(end_with(write_to_nobody()), testing::ExitedWithCode(3), "^refused$");
}

}  // namespace
}  // namespace hotset::api
