// Time, so that tests need no sleeps. `steady_ns` never goes back; `unix_seconds` is the wall clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace hotset {

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::int64_t steady_ns() const = 0;
  [[nodiscard]] virtual std::int64_t unix_seconds() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] std::int64_t steady_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  [[nodiscard]] std::int64_t unix_seconds() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

// For tests: moves only when told to.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] std::int64_t steady_ns() const override { return ns_; }
  [[nodiscard]] std::int64_t unix_seconds() const override { return unix_; }
  void advance_ns(std::int64_t ns) {
    ns_ += ns;
    unix_ += ns / 1'000'000'000;
  }
  void set_unix_seconds(std::int64_t seconds) { unix_ = seconds; }

 private:
  std::int64_t ns_ = 0;
  std::int64_t unix_ = 0;
};

}  // namespace hotset
