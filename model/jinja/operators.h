// Python's arithmetic, slices and indexing on values. Whole numbers have 64 bits; beyond that is an error.
#pragma once

#include <cstdint>
#include <optional>

#include "model/jinja/ast.h"

namespace hotset::model::jinja {

struct SliceBounds {
  std::optional<std::int64_t> start, stop, step;
};

[[nodiscard]] Value negate(const Value& value);
[[nodiscard]] Value plus(const Value& value);
[[nodiscard]] Value add(const Value& a, const Value& b, Budget& budget);
[[nodiscard]] Value multiply(const Value& a, const Value& b, Budget& budget);
// kSubtract, kDivide, kFloorDivide, kModulo, kPower (and kAdd, kMultiply) of numbers.
[[nodiscard]] Value arithmetic(Op op, const Value& a, const Value& b);
[[nodiscard]] Value slice(const Value& value, const SliceBounds& bounds, Budget& budget);
// Item `index` of a text, list, tuple or range, from the end when negative; missing when there is none.
[[nodiscard]] Value item_at(const Value& value, std::int64_t index, Budget& budget);
// round(value, digits), half to even.
[[nodiscard]] double round_to(double value, std::int64_t digits);

}  // namespace hotset::model::jinja
