// The log of builds without spdlog: the same level filter, one write per line.
#include <atomic>
#include <cstdio>

#include "core/log.h"

namespace hotset {
namespace {
std::atomic<LogLevel> g_level{LogLevel::kInfo};
constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};
}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }
void log_line(LogLevel level, std::string_view text) {
  if (!log_enabled(level)) return;
  std::fprintf(stderr, "[%s] %.*s\n", kNames[static_cast<int>(level)], static_cast<int>(text.size()), text.data());
}

}  // namespace hotset
