// GPT-2's printable spelling of bytes: each byte is written as one character, so that vocabularies are valid text
// (space is U+0120, newline U+010A).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace hotset::model {

// [byte] -> its character in UTF-8.
[[nodiscard]] const std::array<std::string, 256>& byte_level_characters();
[[nodiscard]] std::string to_byte_level(std::string_view bytes);
// Nothing when a character of `text` stands for no byte.
[[nodiscard]] std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace hotset::model
