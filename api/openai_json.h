// JSON of clients: parsed with limits, so that a small or hostile body can't make the server hold much, recurse deeply
// or answer with a copy of what was sent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/result.h"

namespace hotset::api {

// Members keep their order, because chat templates print objects as they were sent.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int depth = 64;
  std::size_t values = 4'000'000;
  std::size_t containers = 262'144;
  std::size_t members = 262'144;           // of all objects together
  std::size_t members_per_object = 1'024;  // looked up one after the other
};

// Strict JSON and strict UTF-8. The error names the field in which the text breaks ("messages[0].content"), where
// known. A repeated member replaces the earlier one.
[[nodiscard]] Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// The same for a request body, which must be an object.
[[nodiscard]] Result<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

// Text of a value for an answer: compact, always valid UTF-8 (broken bytes become U+FFFD).
[[nodiscard]] std::string to_text(const Json& value);

// A float as the shortest decimal that reads back as the same float; NaN and infinities become -9999.0.
[[nodiscard]] Json number(float value);

[[nodiscard]] bool is_valid_utf8(std::string_view text);

}  // namespace hotset::api
