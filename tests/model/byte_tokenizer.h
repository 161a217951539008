// A tokenizer.json whose tokens are the 256 bytes: fits the tiny fixtures' vocabulary of 512.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace hotset::model {

inline std::string byte_tokenizer_json() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocabulary[name] = byte;
  }
  nlohmann::json file = nlohmann::json::parse(R"({
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "byte_fallback": true, "merges": []}})");
  file["model"]["vocab"] = vocabulary;
  return file.dump();
}

}  // namespace hotset::model
