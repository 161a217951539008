// Slow, obvious decoding of the GGUF block formats, written from their description (ggml's block structures), as the
// expected value of everything that reads weights. Scales are normal positive float16 numbers (random_blocks()).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace hotset::model {

inline std::uint8_t byte_at(const std::string& data, std::size_t at) { return static_cast<std::uint8_t>(data.at(at)); }

inline float normal_half(const std::string& data, std::size_t at) {
  const int bits = byte_at(data, at) | byte_at(data, at + 1) << 8;
  return std::ldexp(static_cast<float>(1024 + (bits & 0x3FF)), (bits >> 10) - 25);
}

// Scale and minimum of part `j` of a Q4_K or Q5_K block: 6 bits each in 12 bytes at `at`.
inline std::pair<int, int> six_bit_pair(const std::string& data, std::size_t at, std::size_t j) {
  const auto s = [&](std::size_t i) { return int{byte_at(data, at + i)}; };
  if (j < 4) return {s(j) & 63, s(j + 4) & 63};
  return {(s(j + 4) & 15) | (s(j - 4) >> 6) << 4, (s(j + 4) >> 4) | (s(j) >> 6) << 4};
}

inline void decode_block32(std::uint32_t format, const std::string& data, std::size_t at, std::vector<float>& out) {
  const float d = normal_half(data, at);
  for (std::size_t i = 0; i < 32; ++i) {
    const int shift = i < 16 ? 0 : 4;
    if (format == 2) out.push_back(d * static_cast<float>((byte_at(data, at + 2 + i % 16) >> shift & 15) - 8));
    if (format == 3) {
      out.push_back(d * static_cast<float>(byte_at(data, at + 4 + i % 16) >> shift & 15) + normal_half(data, at + 2));
    }
    if (format == 8) out.push_back(d * static_cast<float>(static_cast<std::int8_t>(byte_at(data, at + 2 + i))));
  }
}

inline void decode_block256(std::uint32_t format, const std::string& data, std::size_t at, std::vector<float>& out) {
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t part = i / 32;
    const std::size_t lane = i % 32;
    if (format == 14) {
      const std::size_t half = i / 128;
      const std::size_t quarter = part % 4;
      const int low = byte_at(data, at + half * 64 + quarter % 2 * 32 + lane) >> (quarter / 2 * 4) & 15;
      const int high = byte_at(data, at + 128 + half * 32 + lane) >> (2 * quarter) & 3;
      const auto scale = static_cast<std::int8_t>(byte_at(data, at + 192 + i / 16));
      out.push_back(normal_half(data, at + 208) * static_cast<float>(scale) *
                    static_cast<float>((low | high << 4) - 32));
      continue;
    }
    const auto [scale, minimum] = six_bit_pair(data, at + 4, part);
    const std::size_t quants = at + (format == 13 ? 48 : 16);
    int q = byte_at(data, quants + part / 2 * 32 + lane) >> (part % 2 * 4) & 15;
    if (format == 13) q += (byte_at(data, at + 16 + lane) >> part & 1) << 4;
    out.push_back(normal_half(data, at) * static_cast<float>(scale * q) -
                  normal_half(data, at + 2) * static_cast<float>(minimum));
  }
}

// `format`: the file's number of the type.
inline std::vector<float> decode_reference(std::uint32_t format, const std::string& data) {
  std::vector<float> out;
  const auto blocks = [&](std::size_t bytes, auto decode) {
    for (std::size_t at = 0; at < data.size(); at += bytes) decode(format, data, at, out);
  };
  switch (format) {
    case 0:
      out.resize(data.size() / 4);
      std::memcpy(out.data(), data.data(), data.size());
      return out;
    case 1: blocks(2, [](auto, const auto& d, auto at, auto& o) { o.push_back(normal_half(d, at)); }); return out;
    case 30:
      blocks(2, [](auto, const auto& d, auto at, auto& o) {
        o.push_back(
            std::bit_cast<float>(std::uint32_t{byte_at(d, at)} << 16 | std::uint32_t{byte_at(d, at + 1)} << 24));
      });
      return out;
    case 2: blocks(18, decode_block32); return out;
    case 3: blocks(20, decode_block32); return out;
    case 8: blocks(34, decode_block32); return out;
    case 12: blocks(144, decode_block256); return out;
    case 13: blocks(176, decode_block256); return out;
    case 14: blocks(210, decode_block256); return out;
    default: throw std::invalid_argument("no such format");
  }
}

}  // namespace hotset::model
