#include "core/content_hash.h"

// The functions become part of this file: no library to link, and the header alone is enough to carry.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace hotset {

struct ContentHash::State {
  XXH3_state_t xxh3;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
ContentHash::~ContentHash() = default;

void ContentHash::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

void ContentHash::add_number(std::int64_t number) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::uint64_t>(number) >> (8 * i));
  }
  add(bytes);
}

void ContentHash::add_real(double number) { add_number(std::bit_cast<std::int64_t>(number)); }

void ContentHash::add_text(std::string_view text) {
  add_number(static_cast<std::int64_t>(text.size()));
  add(std::as_bytes(std::span(text)));
}

Hash128 ContentHash::finish() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh3));
  Hash128 out;
  static_assert(sizeof canonical.digest == sizeof out);
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), out.begin());
  return out;
}

std::string hex(const Hash128& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : hash) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace hotset
