// What the system allows this process, looked at when a server starts: before anything is lost by it. Main thread.
#pragma once

#include <cstdint>

#include "core/result.h"

namespace hotset::api {

// Raises the limit of open files as far as it goes. Returns how many connections fit under it, at most `wanted`;
// kUnavailable where there is hardly room for any.
[[nodiscard]] Result<std::int64_t> connections_under_file_limit(std::int64_t wanted);

// kUnavailable unless `count` more threads can run (ulimit -u, the pids limit of a control group, address space): an
// actor system that cannot start all of its own neither starts nor ends.
[[nodiscard]] Result<void> check_threads(std::int64_t count);

// A reader of our output that has gone and a limit of file sizes fail the write, not the server; a mapped file that is
// cut while it is read ends the server with a message instead of a core dump.
void settle_signals();

}  // namespace hotset::api
