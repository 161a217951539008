// What a piece of a test costs this process: processor time, so that a busy machine changes nothing, and peak memory.
#pragma once

#include <sys/resource.h>

namespace hotset::model {

class ResourceUse {
 public:
  ResourceUse() { ::getrusage(RUSAGE_SELF, &start_); }
  [[nodiscard]] double cpu_seconds() const {
    const auto now = current();
    return seconds(now.ru_utime) + seconds(now.ru_stime) - seconds(start_.ru_utime) - seconds(start_.ru_stime);
  }
  [[nodiscard]] long peak_growth_kib() const { return current().ru_maxrss - start_.ru_maxrss; }

 private:
  static double seconds(const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  static rusage current() {
    rusage now{};
    ::getrusage(RUSAGE_SELF, &now);
    return now;
  }
  rusage start_{};
};

}  // namespace hotset::model
