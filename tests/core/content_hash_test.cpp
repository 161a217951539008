#include "core/content_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace hotset {
namespace {

Hash128 hash_of(std::string_view text) {
  ContentHash hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.finish();
}

// The empty input's hash is published with XXH3-128's reference implementation (XSUM_sanity_check, seed 0).
TEST(ContentHash, IsXxh3) { EXPECT_EQ(hex(hash_of("")), "99aa06d3014798d86001c324468d497f"); }

TEST(ContentHash, PiecesDoNotMatter) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 % 251);
  for (const std::size_t piece : {1, 7, 64, 1000, 4999}) {
    ContentHash hash;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hash.add(std::as_bytes(std::span(std::string_view(text).substr(at, piece))));
    }
    EXPECT_EQ(hash.finish(), hash_of(text)) << "pieces of " << piece;
  }
}

TEST(ContentHash, EveryBitMatters) {
  std::string text(300, 'x');
  const Hash128 before = hash_of(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] ^= 1;
    EXPECT_NE(hash_of(text), before) << "byte " << i;
    text[i] ^= 1;
  }
}

TEST(ContentHash, TextsDoNotRunTogether) {
  ContentHash one;
  one.add_text("ab");
  one.add_text("c");
  ContentHash other;
  other.add_text("a");
  other.add_text("bc");
  EXPECT_NE(one.finish(), other.finish());
}

TEST(ContentHash, NumbersAreEightBytesLittleEndian) {
  ContentHash number;
  number.add_number(0x0807060504030201);
  EXPECT_EQ(number.finish(), hash_of("\x01\x02\x03\x04\x05\x06\x07\x08"));
  ContentHash real;
  real.add_real(1.0);
  EXPECT_EQ(real.finish(), hash_of(std::string_view("\0\0\0\0\0\0\xf0\x3f", 8)));
}

}  // namespace
}  // namespace hotset
