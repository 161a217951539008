#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/concat.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;

Hash128 fingerprint_of(const fs::path& path) {
  const auto checkpoint = open_checkpoint(path);
  EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
  return checkpoint.ok() ? fingerprint(*checkpoint.value()) : Hash128{};
}

TEST(Fingerprint, TheSameForACopy) {
  const TemporaryFolder folder;
  copy_fixture("tiny-llama", folder);
  EXPECT_EQ(fingerprint_of(folder.path()), fingerprint_of(fixture("tiny-llama")));
  EXPECT_EQ(fingerprint_of(folder.path() / "model.safetensors"), fingerprint_of(fixture("tiny-llama")));
  EXPECT_NE(fingerprint_of(fixture("tiny-qwen3")), fingerprint_of(fixture("tiny-llama")));
}

TEST(Fingerprint, EveryTensorCounts) {
  const auto before = fingerprint_of(fixture("tiny-llama"));
  const std::string bytes = read_bytes(fixture("tiny-llama") / "model.safetensors");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  std::size_t tensors = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    ++tensors;
    const TemporaryFolder folder;
    copy_fixture("tiny-llama", folder);
    std::string changed = bytes;
    changed[8 + header_bytes + entry["data_offsets"][1].get<std::size_t>() - 1] ^= 1;
    folder.write("model.safetensors", changed);
    EXPECT_NE(fingerprint_of(folder.path()), before) << name;
  }
  EXPECT_GT(tensors, 10U);
}

TEST(Fingerprint, WhatTurnsWeightsIntoRowsCounts) {
  const auto before = fingerprint_of(fixture("tiny-llama"));
  const auto changed = [&](const std::function<void(nlohmann::json&)>& edit) {
    const TemporaryFolder folder;
    copy_fixture("tiny-llama", folder);
    auto config = nlohmann::json::parse(read_bytes(folder.path() / "config.json"));
    edit(config);
    folder.write("config.json", config.dump());
    return fingerprint_of(folder.path());
  };
  EXPECT_EQ(changed([](auto&) {}), before);
  EXPECT_NE(changed([](auto& config) { config["rms_norm_eps"] = 1e-3; }), before);
  EXPECT_NE(changed([](auto& config) {
              config.erase("rope_parameters");
              config.erase("rope_scaling");
              config["rope_theta"] = 12345.0;
            }),
            before);
}

// Two tensors of 768 MiB each in a file that is mostly holes.
TEST(Fingerprint, LargeModelsAreSampled) {
  const TemporaryFolder folder;
  copy_fixture("tiny-llama", folder);
  auto config = nlohmann::json::parse(read_bytes(folder.path() / "config.json"));
  const std::int64_t hidden = config["hidden_size"];
  const std::int64_t vocabulary = (std::int64_t{768} << 20) / hidden / 4;
  config["vocab_size"] = vocabulary;
  config["tie_word_embeddings"] = false;
  folder.write("config.json", config.dump());
  const std::string bytes = read_bytes(fixture("tiny-llama") / "model.safetensors");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  header.erase("__metadata__");
  for (const auto* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    header[name] = {{"dtype", "F32"}, {"shape", {vocabulary, hidden}}};
  }
  std::uint64_t at = 0;
  for (auto& [name, entry] : header.items()) {
    std::uint64_t size = entry["dtype"] == "F32" ? 4 : 2;
    for (const auto& dimension : entry["shape"]) size *= dimension.get<std::uint64_t>();
    entry["data_offsets"] = {at, at + size};
    at += size;
  }
  const std::string text = header.dump();
  header_bytes = text.size();
  const auto file =
      folder.write("model.safetensors",
                   concat(std::string_view(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes), text));
  const std::uint64_t data = 8 + text.size();
  fs::resize_file(file, data + at);

  const auto begin = header["lm_head.weight"]["data_offsets"][0].get<std::uint64_t>();
  const auto end = header["lm_head.weight"]["data_offsets"][1].get<std::uint64_t>();
  const auto with_byte = [&](std::uint64_t position, char byte) {
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(data + position));
    out.put(byte);
    out.close();
    return fingerprint_of(folder.path());
  };
  const auto before = with_byte(begin, 0);
  for (const std::uint64_t position : {begin, (begin + end) / 2, end - 1}) {
    const auto changed = with_byte(position, 1);
    // Sixteen pieces of a tensor of even size: the middle lies between two of them.
    EXPECT_EQ(changed == before, position == (begin + end) / 2) << position - begin;
    EXPECT_EQ(with_byte(position, 0), before);
  }
}

TEST(Fingerprint, TakesLessThanReadingTheModel) {
  const char* model = std::getenv("HOTSET_DEFAULT_MODEL");
  const fs::path path = model != nullptr ? model : HOTSET_DEFAULT_MODEL;
  if (!fs::exists(path)) GTEST_SKIP() << "the default model is not there: ./run prepare fetches it";
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto first = fingerprint(*checkpoint.value());  // the file is in memory now
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(fingerprint(*checkpoint.value()), first);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("fingerprint of %.0f MB: %.1f ms\n", static_cast<double>(fs::file_size(path)) / 1e6,
              seconds.count() * 1e3);
  EXPECT_LT(seconds.count(), 1.0);
}

}  // namespace
}  // namespace hotset::model
