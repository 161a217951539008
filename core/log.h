// Logging. One line per event, on standard error. Thread-safe. spdlog stands behind it (core/log_spdlog.cpp); a build
// without the server writes the same lines itself (core/log_plain.cpp). Never called inside a decode step.
#pragma once

#include <string_view>

#include "core/concat.h"

namespace hotset {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view text);

template <class... Parts>
void log_debug(const Parts&... parts) {
  if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, concat(parts...));
}
template <class... Parts>
void log_info(const Parts&... parts) {
  if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, concat(parts...));
}
template <class... Parts>
void log_warn(const Parts&... parts) {
  if (log_enabled(LogLevel::kWarn)) log_line(LogLevel::kWarn, concat(parts...));
}
template <class... Parts>
void log_error(const Parts&... parts) {
  if (log_enabled(LogLevel::kError)) log_line(LogLevel::kError, concat(parts...));
}

}  // namespace hotset
