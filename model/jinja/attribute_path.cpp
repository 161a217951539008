#include "model/jinja/attribute_path.h"

#include <algorithm>
#include <charconv>

#include "model/jinja/text_operations.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {

AttributePath::AttributePath(const Value& attribute, Budget& budget) {
  if (attribute.is_missing() || attribute.is_none()) return;
  if (!attribute.is_text()) {
    parts_.push_back(attribute);
    return;
  }
  for (const std::string_view part : split_at(attribute.bytes(), ".", INT64_MAX, false, budget)) {
    std::int64_t number = 0;
    const bool is_number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (is_number && std::from_chars(part.data(), part.data() + part.size(), number).ec == std::errc{}) {
      parts_.push_back(Value::integer(number));
    } else {
      parts_.push_back(Value::text(std::string(part)));
    }
  }
}

Value AttributePath::read(Interpreter& interpreter, Value item, const Value& otherwise) const {
  for (const Value& part : parts_) {
    interpreter.budget().step();
    item = interpreter.item(item, part);
    if (item.is_undefined() && !otherwise.is_missing() && !otherwise.is_none()) item = otherwise;
  }
  return item;
}

Value sort_key(const Value& value, bool case_sensitive) {
  return value.is_text() && !case_sensitive ? Value::text(to_lower(value.bytes())) : value;
}

}  // namespace hotset::model::jinja
