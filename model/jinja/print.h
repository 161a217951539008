// Values as text: str() and repr() as Python prints them, JSON as json.dumps writes it, and JSON read into values.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "model/jinja/value.h"

namespace hotset::model::jinja {

// Shortest text that reads back as the same number: 1.0, 0.1, 1e+20, inf, nan.
[[nodiscard]] std::string float_repr(double value);
[[nodiscard]] std::string text_repr(std::string_view text);
// str(value): a text as it is, everything else as repr; '' for undefined.
[[nodiscard]] std::string to_text(const Value& value, Budget& budget);
void append_text(std::string& out, const Value& value, Budget& budget);

struct JsonStyle {
  std::optional<std::string> indent;  // spaces of one level; absent = one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ensure_ascii = false;
};
// Fails for what JSON has no form for (undefined, iterators, functions).
[[nodiscard]] std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

// Fails when nested deeper than kMaxDepth or for whole numbers beyond 64 bits.
[[nodiscard]] Value from_json(const nlohmann::ordered_json& json, Budget& budget);
// Bytes that the texts and items of `json` take, about; keys are not counted.
[[nodiscard]] std::int64_t json_size(const nlohmann::ordered_json& json);

}  // namespace hotset::model::jinja
