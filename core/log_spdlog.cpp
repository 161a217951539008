#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace hotset {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::off;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = spdlog::stderr_color_mt("hotset");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e [%^%l%$] %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }
void log_line(LogLevel level, std::string_view text) {
  logger().log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace hotset
