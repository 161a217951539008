// Numbers and texts laid out by a format specification: shared by 'text' % values and 'text'.format(...).
#pragma once

#include <cstdint>
#include <string>

#include "model/jinja/value.h"

namespace hotset::model::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=' or 0 for the type's own
  char sign = '-';
  bool alternate = false;
  char grouping = 0;  // ',' or '_'
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 0;
};

// [[fill]align][sign][#][0][width][grouping][.precision][type]
[[nodiscard]] FormatSpec parse_format_spec(std::string_view text);
[[nodiscard]] std::string format_value(const Value& value, const FormatSpec& spec, Budget& budget);

}  // namespace hotset::model::jinja
