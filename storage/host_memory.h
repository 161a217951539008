// How much memory this process may still use, for the default sizes of the pools and for refusing larger ones: the
// smaller of what the machine has left and what its control groups leave. Read once at start; the files are small.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/result.h"

namespace hotset::storage {

// Where the kernel's files are; tests point these at trees of their own.
struct MemoryFileRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";  // v2 (unified), v1 (memory/), or both (unified/ and memory/)
};

struct UsableMemory {
  std::int64_t bytes = 0;                       // the smaller of the two below
  std::optional<std::int64_t> available_bytes;  // MemAvailable; absent: not readable
  std::optional<std::int64_t> cgroup_bytes;     // the least headroom on the way to the root; absent: no limit is set
};

// Page cache does not count as used. Absent, unreadable or malformed files count as "no limit"; kUnavailable, naming
// the options that make the answer unnecessary, when neither number can be read.
Result<UsableMemory> usable_memory(const MemoryFileRoots& roots = {});

}  // namespace hotset::storage
