#include "sparse/selection_code.h"

namespace hotset::sparse {

void put_number(std::uint64_t number, std::vector<std::uint8_t>& out) {
  while (number >= 0x80) {
    out.push_back(static_cast<std::uint8_t>(number | 0x80));
    number >>= 7;
  }
  out.push_back(static_cast<std::uint8_t>(number));
}

bool put_blocks(std::span<const std::int32_t> blocks, std::vector<std::uint8_t>& out) {
  std::int64_t next = 0;  // the least that may follow
  for (const std::int32_t block : blocks) {
    if (block < next) return false;
    put_number(static_cast<std::uint64_t>(block - next), out);
    next = std::int64_t{block} + 1;
  }
  return true;
}

std::optional<std::uint64_t> NumberReader::number() {
  std::uint64_t number = 0;
  for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    if (shift == 63 && byte > 1) return std::nullopt;
    number |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

std::span<const std::uint8_t> NumberReader::bytes(std::size_t count) {
  const auto taken = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  return taken;
}

bool NumberReader::blocks(std::uint64_t count, std::int32_t last, std::vector<std::int32_t>& out) {
  out.clear();
  if (count > left()) return false;  // each takes a byte at least
  out.reserve(count);
  std::int64_t next = 0;
  for (; count > 0; --count) {
    const auto distance = number();
    if (!distance || *distance > static_cast<std::uint64_t>(last) || next + static_cast<std::int64_t>(*distance) > last)
      return false;
    out.push_back(static_cast<std::int32_t>(next + static_cast<std::int64_t>(*distance)));
    next = std::int64_t{out.back()} + 1;
  }
  return true;
}

}  // namespace hotset::sparse
