// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): numbers that are the
// same on every machine, from a seed alone. Not for secrets. Any thread.
#pragma once

#include <cstdint>

namespace hotset {

inline constexpr std::uint64_t kSplitmixStep = 0x9E3779B97F4A7C15;  // from one state to the next

// The number that follows `state`; also a hash of it.
[[nodiscard]] constexpr std::uint64_t splitmix64(std::uint64_t state) {
  std::uint64_t z = state + kSplitmixStep;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace hotset
