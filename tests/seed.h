// The seed of a test with random inputs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>

namespace hotset {

// HOTSET_TEST_SEED, which repeats a run; else `usual`; else another one each time. Printed.
inline std::uint64_t test_seed(std::optional<std::uint64_t> usual = std::nullopt) {
  const char* given = std::getenv("HOTSET_TEST_SEED");
  const std::uint64_t seed = given != nullptr    ? std::strtoull(given, nullptr, 10)
                             : usual.has_value() ? *usual
                                                 : std::random_device{}();
  std::cout << "HOTSET_TEST_SEED=" << seed << '\n';
  return seed;
}

}  // namespace hotset
