#include "model/tokenizer/byte_level.h"

#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// Printable bytes stand for themselves (as Latin-1), the other 68 follow from U+0100 on.
std::array<char32_t, 256> code_points() {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) out[byte] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
  return out;
}

}  // namespace

const std::array<std::string, 256>& byte_level_characters() {
  static const auto table = [] {
    std::array<std::string, 256> out;
    const auto points = code_points();
    for (int byte = 0; byte < 256; ++byte) append_code_point(points[byte], out[byte]);
    return out;
  }();
  return table;
}

std::string to_byte_level(std::string_view bytes) {
  const auto& characters = byte_level_characters();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) out += characters[byte];
  return out;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  static const auto byte_of = [] {
    std::array<int, 0x144> out;
    out.fill(-1);
    const auto points = code_points();
    for (int byte = 0; byte < 256; ++byte) out[points[byte]] = byte;
    return out;
  }();
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t point = next_code_point(text, at);
    if (point >= byte_of.size() || byte_of[point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte_of[point]));
  }
  return out;
}

}  // namespace hotset::model
