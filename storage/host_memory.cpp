#include "storage/host_memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace hotset::storage {
namespace {

namespace fs = std::filesystem;

// cgroup v1 writes "no limit" as the largest multiple of a memory page below 2^63.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

// What the two versions of control groups call the same things. In v1 the total_ counters include the groups below, as
// v2's always do.
struct CgroupFiles {
  std::vector<std::string_view> limits;
  std::string_view usage;
  std::vector<std::string_view> page_cache;  // keys of memory.stat
};
const CgroupFiles kCgroupV2{{"memory.max", "memory.high"}, "memory.current", {"active_file", "inactive_file"}};
const CgroupFiles kCgroupV1{
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};

// Decimal, not negative, and followed by the end, white space or a unit; "max" and anything else give nothing.
std::optional<std::int64_t> parse_number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return std::nullopt;
  return value;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::optional<std::int64_t> read_number(const fs::path& path) { return parse_number(read_text(path)); }

// The number behind `key` in lines of "key number" or "key: number unit".
std::optional<std::int64_t> number_of_key(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string_view rest = line;
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    if (rest.starts_with(':')) rest.remove_prefix(1);
    if (rest.starts_with(' ') || rest.starts_with('\t')) return parse_number(rest);
  }
  return std::nullopt;
}

std::optional<std::int64_t> available_memory(const fs::path& proc) {
  const std::string text = read_text(proc / "meminfo");
  std::optional<std::int64_t> kib = number_of_key(text, "MemAvailable");
  if (!kib) kib = number_of_key(text, "MemFree");  // kernels before 3.14
  if (!kib || *kib > kNoLimit / 1024) return std::nullopt;
  return *kib * 1024;
}

std::optional<std::int64_t> smaller(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// What one group leaves; nothing when it sets no limit.
std::optional<std::int64_t> group_headroom(const fs::path& group, const CgroupFiles& files) {
  std::optional<std::int64_t> limit;
  for (const std::string_view name : files.limits) limit = smaller(limit, read_number(group / name));
  if (!limit || *limit >= kNoLimit) return std::nullopt;
  std::int64_t used = read_number(group / files.usage).value_or(0);
  const std::string stat = read_text(group / "memory.stat");
  for (const std::string_view key : files.page_cache) used -= number_of_key(stat, key).value_or(0);
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, used));
}

// A limit of any group between the process's own and the root holds. In a container the path may be the host's, which
// does not exist here; the walk then ends at the root, where the container's own group is mounted.
std::optional<std::int64_t> hierarchy_headroom(const fs::path& root, std::string_view group, const CgroupFiles& files) {
  std::optional<std::int64_t> least = group_headroom(root, files);
  fs::path path = root;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part == "..") break;  // a group outside this process's namespace: not visible
    path /= part;
    least = smaller(least, group_headroom(path, files));
  }
  return least;
}

bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "memory") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

// Lines of /proc/self/cgroup: "number:controllers:path"; v2 has number 0 and no controllers.
std::optional<std::int64_t> cgroup_headroom(const MemoryFileRoots& roots) {
  const fs::path cgroup = roots.cgroup;
  std::optional<std::int64_t> least;
  std::istringstream lines(read_text(fs::path(roots.proc) / "self" / "cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const std::string_view group = std::string_view(line).substr(second + 1);
    if (controllers.empty()) {
      least = smaller(least, hierarchy_headroom(cgroup, group, kCgroupV2));
      least = smaller(least, hierarchy_headroom(cgroup / "unified", group, kCgroupV2));
    } else if (names_memory(controllers)) {
      least = smaller(least, hierarchy_headroom(cgroup / "memory", group, kCgroupV1));
    }
  }
  return least;
}

}  // namespace

Result<UsableMemory> usable_memory(const MemoryFileRoots& roots) {
  UsableMemory memory;
  memory.available_bytes = available_memory(roots.proc);
  memory.cgroup_bytes = cgroup_headroom(roots);
  const std::optional<std::int64_t> bytes = smaller(memory.available_bytes, memory.cgroup_bytes);
  if (!bytes)
    return Error{ErrorCode::kUnavailable,
                 "the memory that is available cannot be read from /proc/meminfo: set --device-kv-tokens and --host-kv",
                 "--host-kv"};
  memory.bytes = *bytes;
  return memory;
}

}  // namespace hotset::storage
