// HS_CHECK: an invariant of our own code, never reachable from user input or file contents. Prints and aborts.
#pragma once

namespace hotset {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);

}  // namespace hotset

#define HS_CHECK(condition, message)                                   \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::hotset::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
