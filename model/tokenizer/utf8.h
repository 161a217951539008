// UTF-8 at the level of single characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hotset::model {

// The first bytes that are (or, at the end of the input, may still become) one character.
struct Utf8Sequence {
  enum class Kind { kCharacter, kBroken, kIncomplete };
  Kind kind;
  std::size_t bytes;  // kBroken: the maximal broken part, which becomes one U+FFFD; at least 1
};
// `text` isn't empty.
[[nodiscard]] Utf8Sequence first_sequence(std::string_view text);

[[nodiscard]] bool is_valid_utf8(std::string_view bytes);

// Reads the character at `at` and moves `at` behind it. `text` must be valid UTF-8 and at < text.size().
[[nodiscard]] char32_t next_code_point(std::string_view text, std::size_t& at);
// Bytes of the character that starts with `lead`, in valid UTF-8.
[[nodiscard]] inline std::size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}
void append_code_point(char32_t point, std::string& out);

}  // namespace hotset::model
