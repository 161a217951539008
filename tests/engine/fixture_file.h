// Expected outputs of the reference library: tests/fixtures/*/expected*.json.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/check.h"

namespace hotset::testing {

inline std::filesystem::path fixture(const std::string& name) { return std::filesystem::path(HOTSET_FIXTURES) / name; }

inline std::filesystem::path unpacked_fixture(const std::string& name) {
  return std::filesystem::path(HOTSET_UNPACKED_FIXTURES) / name;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  HS_CHECK(file.good(), "the fixture is there");
  return nlohmann::json::parse(file);
}

}  // namespace hotset::testing
