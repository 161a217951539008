// What one rendering may use. Every loop, copy and scan of the interpreter pays here, so a template can neither run
// for ever nor fill the memory. One Budget per rendering and thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/clock.h"

namespace hotset::model::jinja {

struct RenderLimits {
  std::int64_t steps = 20'000'000;
  std::int64_t bytes = std::int64_t{64} << 20;  // of everything created during a rendering, never given back
  std::int64_t bytes_per_input_byte = 64;       // added to `bytes`
  std::int64_t time_ns = 10'000'000'000;
  std::int32_t depth = 600;       // nested expressions, statements and macro calls
  std::int32_t call_depth = 150;  // nested macro calls and recursive loops
  std::int64_t range = 100'000;   // items of one range(), as jinja2's sandbox
};

// Internal control flow of the interpreter; never leaves Template::compile or Template::render.
struct TemplateError {
  std::string message;
  bool raised_by_template = false;  // raise_exception: the message is shown as it is
  int line = 0;                     // 0 = not known yet
};
[[noreturn]] inline void fail(std::string message) { throw TemplateError{std::move(message)}; }

class Budget {
 public:
  Budget(const RenderLimits& limits, const Clock& clock, std::int64_t input_bytes)
      : limits_(limits),
        clock_(clock),
        deadline_ns_(clock.steady_ns() + limits.time_ns),
        steps_left_(limits.steps),
        next_check_(limits.steps - kCheckEvery),
        bytes_left_(limits.bytes + limits.bytes_per_input_byte * input_bytes) {}

  void step(std::int64_t count = 1) {
    steps_left_ -= count;
    if (steps_left_ < next_check_) [[unlikely]]
      check();
  }
  // Reading `count` bytes without keeping them.
  void scan(std::int64_t count) { step(1 + count / 64); }
  // Call before allocating where the size is known, so that no huge block is ever asked for.
  void bytes(std::int64_t count) {
    if (count < 0 || count > bytes_left_) fail("the template uses too much memory");
    bytes_left_ -= count;
    step(1 + count / 256);
  }
  [[nodiscard]] const RenderLimits& limits() const { return limits_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }

 private:
  static constexpr std::int64_t kCheckEvery = 4096;

  void check() {
    if (steps_left_ < 0) fail("the template takes too many steps");
    if (clock_.steady_ns() > deadline_ns_) fail("the template takes too long");
    next_check_ = steps_left_ - kCheckEvery;
  }

  RenderLimits limits_;
  const Clock& clock_;
  std::int64_t deadline_ns_;
  std::int64_t steps_left_;
  std::int64_t next_check_;
  std::int64_t bytes_left_;
};

}  // namespace hotset::model::jinja
