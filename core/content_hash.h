// 128-bit hashes of contents (XXH3-128, at memory speed): fingerprints, identities of files, checksums. They find
// damage and chance collisions, not an adversary's. xxHash stands behind it (core/content_hash.cpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hotset {

using Hash128 = std::array<std::uint8_t, 16>;  // XXH3-128 in its canonical (big-endian) form

// Hash of everything added, in order. One owner, one thread.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void add(std::span<const std::byte> bytes);  // nothing marks where it ends: add_number(size) first if sizes vary
  void add_number(std::int64_t number);        // 8 bytes, little-endian
  void add_real(double number);                // its bits, as a number
  void add_text(std::string_view text);        // its length, then its bytes
  [[nodiscard]] Hash128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::string hex(const Hash128& hash);  // 32 digits

}  // namespace hotset
