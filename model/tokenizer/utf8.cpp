#include "model/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace hotset::model {
namespace {

struct Lead {
  int length;  // 0: can't start a character
  unsigned char second_low, second_high;
};

// The Unicode standard's table 3-7: the second byte's range excludes overlong forms, surrogates and > U+10FFFF.
Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Sequence first_sequence(std::string_view text) {
  using Kind = Utf8Sequence::Kind;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return {Kind::kBroken, 1};
  for (int i = 1; i < lead.length; ++i) {
    const auto index = static_cast<std::size_t>(i);
    if (index == text.size()) return {Kind::kIncomplete, index};
    const auto byte = static_cast<unsigned char>(text[index]);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xbf;
    if (byte < low || byte > high) return {Kind::kBroken, index};
  }
  return {Kind::kCharacter, static_cast<std::size_t>(lead.length)};
}

bool is_valid_utf8(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (bytes.size() - at >= 8) {  // most text is ASCII
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        at += 8;
        continue;
      }
    }
    const Utf8Sequence sequence = first_sequence(bytes.substr(at));
    if (sequence.kind != Utf8Sequence::Kind::kCharacter) return false;
    at += sequence.bytes;
  }
  return true;
}

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const std::size_t length = character_bytes(text[at]);
  const auto lead = static_cast<unsigned char>(text[at]);
  char32_t point = length == 1 ? lead : lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) point = point << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3fU);
  at += length;
  return point;
}

void append_code_point(char32_t point, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xc0 | point >> 6);
    put(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    put(0xe0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3f));
    put(0x80 | (point & 0x3f));
  } else {
    put(0xf0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3f));
    put(0x80 | (point >> 6 & 0x3f));
    put(0x80 | (point & 0x3f));
  }
}

}  // namespace hotset::model
