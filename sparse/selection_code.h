// Numbers and selections as bytes, for traces (docs/trace_format.md): unsigned LEB128, and for a selection the first
// block, then for each further block its distance from the one before, less one. A selection of every eighth token
// takes one byte for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hotset::sparse {

void put_number(std::uint64_t number, std::vector<std::uint8_t>& out);

// False when the blocks are not strictly ascending from 0 on; `out` may then hold some of them.
[[nodiscard]] bool put_blocks(std::span<const std::int32_t> blocks, std::vector<std::uint8_t>& out);

// Reads what the functions above wrote, from bytes that may be anything.
class NumberReader {
 public:
  // The bytes must stay valid.
  explicit NumberReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::size_t left() const { return bytes_.size(); }
  // Nothing: the bytes end first, or the number does not fit.
  [[nodiscard]] std::optional<std::uint64_t> number();
  // The next `count` bytes, at most left().
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t count);
  // `count` blocks, none above `last`; replaces `out`, which grows to no more numbers than there are bytes. False:
  // there are fewer, or one is above `last`; `out` is then unspecified.
  [[nodiscard]] bool blocks(std::uint64_t count, std::int32_t last, std::vector<std::int32_t>& out);

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace hotset::sparse
