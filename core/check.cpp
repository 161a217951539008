#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace hotset {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "hotset: internal error at %s:%d: %s (%s)\n", file, line, message, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace hotset
