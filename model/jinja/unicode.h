// Code points of UTF-8 text, with Python's notion of spaces, letters and case. Broken bytes count as one code point
// each and are passed through unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/jinja/budget.h"

namespace hotset::model::jinja {

// Decodes the code point at `at` and moves `at` past it. Needs at < text.size(). A broken byte gives 0xDC00 + byte.
char32_t next_code_point(std::string_view text, std::size_t& at);
// Start of the code point that ends at `end` (> 0).
[[nodiscard]] std::size_t previous_start(std::string_view text, std::size_t end);
void append_code_point(std::string& out, char32_t code_point);

[[nodiscard]] bool is_valid_utf8(std::string_view text);
[[nodiscard]] std::int64_t count_code_points(std::string_view text);
// Byte offset of code point `index`; text.size() when there are fewer.
[[nodiscard]] std::size_t byte_offset(std::string_view text, std::int64_t index);

[[nodiscard]] bool is_space(char32_t c);
[[nodiscard]] bool is_alpha(char32_t c);
[[nodiscard]] bool is_digit(char32_t c);
[[nodiscard]] bool is_decimal(char32_t c);
[[nodiscard]] bool is_numeric(char32_t c);
[[nodiscard]] bool is_upper(char32_t c);
[[nodiscard]] bool is_lower(char32_t c);
[[nodiscard]] bool is_printable(char32_t c);
[[nodiscard]] inline bool is_alnum(char32_t c) { return is_alpha(c) || is_digit(c) || is_numeric(c); }

[[nodiscard]] std::string to_upper(std::string_view text);
[[nodiscard]] std::string to_lower(std::string_view text);
// str.title(): a letter after a non-letter is upper case, other letters lower case.
[[nodiscard]] std::string to_title(std::string_view text);
[[nodiscard]] std::string swap_case(std::string_view text);

// The part without leading (left) and trailing (right) white space.
[[nodiscard]] std::string_view strip_space(std::string_view text, bool left, bool right);
// The same for the code points of `chars`, all of which are read for each one of `text`.
[[nodiscard]] std::string_view strip_chars(std::string_view text, std::string_view chars, bool left, bool right,
                                           Budget& budget);

}  // namespace hotset::model::jinja
