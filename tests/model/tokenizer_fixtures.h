// Files that the tokenizer's tests read.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace hotset::model {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string fixture_path(std::string_view name) {
  return std::string(HOTSET_FIXTURES) + "/" + std::string(name);
}
inline std::string fixture_text(std::string_view name) { return read_text(fixture_path(name)); }
inline nlohmann::json fixture_json(std::string_view name) { return nlohmann::json::parse(fixture_text(name)); }

inline std::shared_ptr<const Tokenizer> load_or_fail(std::string_view json, const TokenizerSettings& settings = {}) {
  auto tokenizer = load_tokenizer_json(json, settings);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer ? tokenizer.value() : nullptr;
}

inline std::vector<std::int32_t> ids_or_fail(const Tokenizer& tokenizer, std::string_view text,
                                             EncodeOptions options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids ? ids.value() : std::vector<std::int32_t>{-1};
}

}  // namespace hotset::model
