// Text work that str methods and filters share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/budget.h"

namespace hotset::model::jinja {

// Offset of the first occurrence of `wanted`, of the last where `from_right`; npos when there is none. A plain search
// may compare all of `wanted` at every place of `text`, so it goes in pieces that are paid for one by one.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view wanted, bool from_right, Budget& budget);
// str.split: at most `limit` cuts, counted from the right where `from_right`. The pieces point into `text`.
[[nodiscard]] std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                                     std::int64_t limit, bool from_right, Budget& budget);
[[nodiscard]] std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t limit, bool from_right);
[[nodiscard]] std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// The first `count` occurrences, all when negative.
[[nodiscard]] std::string replace_all(std::string_view text, std::string_view old_part, std::string_view new_part,
                                      std::int64_t count, Budget& budget);
[[nodiscard]] std::string capitalized(std::string_view text);
// str.isupper / str.islower.
[[nodiscard]] bool has_only_case(std::string_view text, bool upper);

enum class Alignment { kLeft, kRight, kCenter };
// `text` of `length` code points, brought to `width` code points with `fill`. A centred text follows str.center.
[[nodiscard]] std::string padded(std::string_view text, std::int64_t length, std::int64_t width, std::string_view fill,
                                 Alignment alignment, Budget& budget);

}  // namespace hotset::model::jinja
