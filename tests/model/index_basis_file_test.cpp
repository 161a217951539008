#include "model/index_basis_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "core/concat.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

KvGeometry geometry_of(std::int32_t layers, std::int32_t kv_heads, std::int32_t key_dim) {
  return {.layers = layers, .kv_heads = kv_heads, .key_dim = key_dim, .value_dim = key_dim};
}

// Columns are unit vectors turned by a layer's and head's own angle.
sparse::IndexBasis sample_basis(std::int32_t layers, std::int32_t kv_heads, std::int32_t key_dim, std::int32_t rank) {
  sparse::IndexBasis basis{.layers = layers, .kv_heads = kv_heads, .key_dim = key_dim, .rank = rank};
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    std::vector<float> u(static_cast<std::size_t>(kv_heads) * key_dim * rank);
    for (std::int32_t head = 0; head < kv_heads; ++head) {
      const double angle = 0.3 + layer + 0.1 * head;
      for (std::int32_t pair = 0; pair < rank / 2; ++pair) {
        float* top = &u[static_cast<std::size_t>((head * key_dim + 2 * pair) * rank + 2 * pair)];
        top[0] = static_cast<float>(std::cos(angle));
        top[1] = static_cast<float>(-std::sin(angle));
        top[rank] = static_cast<float>(std::sin(angle));
        top[rank + 1] = static_cast<float>(std::cos(angle));
      }
    }
    basis.u.push_back(std::move(u));
  }
  hash_index_basis(basis);
  return basis;
}

class IndexBasisFile : public ::testing::Test {
 protected:
  // The sample file, after `edit` has changed its header and its numbers.
  fs::path edited(const std::function<void(ordered_json& header, std::vector<float>& data)>& edit) {
    const auto path = folder_.path() / "index_basis.safetensors";
    EXPECT_TRUE(write_index_basis(path, sample_basis(2, 2, 8, 4)).ok());
    const std::string bytes = read_bytes(path);
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    ordered_json header = ordered_json::parse(bytes.substr(8, header_bytes));
    std::vector<float> data((bytes.size() - 8 - header_bytes) / 4);
    std::memcpy(data.data(), bytes.data() + 8 + header_bytes, data.size() * 4);
    edit(header, data);
    const std::string text = header.dump();
    header_bytes = text.size();
    return folder_.write("index_basis.safetensors",
                         concat(std::string_view(reinterpret_cast<const char*>(&header_bytes), 8), text,
                                std::string_view(reinterpret_cast<const char*>(data.data()), data.size() * 4)));
  }
  std::string failure(const fs::path& path, const KvGeometry& geometry = geometry_of(2, 2, 8)) {
    const auto basis = read_index_basis(path, geometry);
    EXPECT_FALSE(basis.ok());
    if (basis.ok()) return "";
    EXPECT_NE(basis.error().message.find("index_basis.safetensors"), std::string::npos) << basis.error().message;
    return basis.error().message;
  }
  TemporaryFolder folder_;
};

TEST_F(IndexBasisFile, RoundTrip) {
  const auto path = folder_.path() / "index_basis.safetensors";
  for (const auto& basis : {sample_basis(2, 2, 8, 4), sample_basis(12, 1, 64, 16)}) {  // the second replaces the first
    ASSERT_TRUE(write_index_basis(path, basis).ok());
    const auto read = read_index_basis(path, geometry_of(basis.layers, basis.kv_heads, basis.key_dim));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value().rank, basis.rank);
    EXPECT_EQ(read.value().u, basis.u);
    EXPECT_EQ(read.value().hash, basis.hash);
  }
  // Nothing but the file is left behind.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1);
}

TEST_F(IndexBasisFile, FixturesOfTheReferenceLoad) {
  for (const std::string name : {"tiny-llama", "tiny-qwen3"}) {
    const auto folder = fixture(name);
    const auto config = nlohmann::json::parse(read_bytes(folder / "config.json"));
    const auto geometry = geometry_of(config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]);
    const auto basis = read_index_basis(folder / "index_basis.safetensors", geometry);
    ASSERT_TRUE(basis.ok()) << basis.error().message;
    EXPECT_EQ(basis.value().layers, geometry.layers);
    EXPECT_EQ(basis.value().u.size(), static_cast<std::size_t>(geometry.layers));
    EXPECT_EQ(basis.value().of(0).size(),
              static_cast<std::size_t>(geometry.kv_heads) * geometry.key_dim * basis.value().rank);
  }
}

TEST_F(IndexBasisFile, OfAnotherModel) {
  const auto path = edited([](auto&, auto&) {});
  EXPECT_TRUE(read_index_basis(path, geometry_of(2, 2, 8)).ok());
  EXPECT_NE(failure(path, geometry_of(3, 2, 8)).find("lacks the tensor layers.2.index_basis"), std::string::npos);
  EXPECT_NE(failure(path, geometry_of(1, 2, 8)).find("layers.1.index_basis belongs to no layer"), std::string::npos);
  EXPECT_NE(failure(path, geometry_of(2, 1, 8)).find("layers.0.index_basis has shape [2, 8, 4]"), std::string::npos);
  EXPECT_NE(failure(path, geometry_of(2, 2, 16)).find("asks for [2, 16, rank]"), std::string::npos);
}

TEST_F(IndexBasisFile, DamagedNumbers) {
  const auto with = [&](std::size_t index, float number) {
    return failure(edited([&](auto&, auto& data) { data[index] = number; }));
  };
  EXPECT_NE(with(0, std::numeric_limits<float>::quiet_NaN()).find("not finite"), std::string::npos);
  EXPECT_NE(with(127, std::numeric_limits<float>::infinity()).find("layers.1.index_basis"), std::string::npos);
  EXPECT_NE(with(0, 0.7F).find("layers.0.index_basis holds directions that are not orthogonal"), std::string::npos);
  EXPECT_NE(with(64, 1e38F).find("layers.1.index_basis holds directions"), std::string::npos);
}

TEST_F(IndexBasisFile, DamagedHeaders) {
  const auto with = [&](const std::function<void(ordered_json&)>& edit) {
    return failure(edited([&](auto& header, auto&) { edit(header); }));
  };
  EXPECT_NE(with([](auto& h) { h["layers.1.index_basis"]["dtype"] = "I32"; }).find("not of type F32"),
            std::string::npos);
  EXPECT_NE(with([](auto& h) { h["layers.0.index_basis"]["shape"] = {2, 32}; }).find("has shape [2, 32]"),
            std::string::npos);
  EXPECT_NE(with([](auto& h) { h["layers.0.index_basis"]["shape"] = {1, 16, 4}; }).find("has shape"),
            std::string::npos);
  EXPECT_NE(with([](auto& h) { h["layers.0.index_basis"]["shape"] = {2, 8, 1LL << 62}; }).find("index_basis"),
            std::string::npos);
  EXPECT_NE(with([](auto& h) {
              h["layers.7.index_basis"] = h["layers.1.index_basis"];
              h.erase("layers.1.index_basis");
            }).find("lacks the tensor layers.1.index_basis"),
            std::string::npos);
}

TEST_F(IndexBasisFile, OddRanksAreRefused) {
  // 2 heads of 4 channels: 64 numbers are rank 8, which is larger than the key.
  const auto wide = edited([](auto& header, auto&) {
    for (auto& entry : header) entry["shape"] = {2, 4, 8};
  });
  EXPECT_NE(failure(wide, geometry_of(2, 2, 4)).find("even number from 2 to 4"), std::string::npos);
  const auto odd = edited([](auto& header, auto& data) {
    for (auto& entry : header) entry["shape"] = {2, 8, 3};
    header["layers.0.index_basis"]["data_offsets"] = {0, 192};
    header["layers.1.index_basis"]["data_offsets"] = {192, 384};
    data.resize(96);
  });
  EXPECT_NE(failure(odd).find("its rank is 3"), std::string::npos);
}

TEST_F(IndexBasisFile, CutAndForeignFiles) {
  const auto path = edited([](auto&, auto&) {});
  const auto size = fs::file_size(path);
  for (const auto bytes : {std::uintmax_t{0}, std::uintmax_t{7}, std::uintmax_t{8}, std::uintmax_t{100}, size - 1}) {
    fs::resize_file(path, bytes);
    const auto basis = read_index_basis(path, geometry_of(2, 2, 8));
    ASSERT_FALSE(basis.ok()) << bytes;
  }
  EXPECT_EQ(read_index_basis(folder_.path() / "absent.safetensors", geometry_of(2, 2, 8)).error().code,
            ErrorCode::kNotFound);
  EXPECT_FALSE(read_index_basis(folder_.path(), geometry_of(2, 2, 8)).ok());
}

TEST_F(IndexBasisFile, WhatCantBeWrittenIsNamed) {
  const auto path = folder_.path() / "absent" / "index_basis.safetensors";
  const auto written = write_index_basis(path, sample_basis(1, 1, 8, 4));
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(written.error().message.find(path.string()), std::string::npos);
  EXPECT_NE(written.error().message.find("No such file or directory"), std::string::npos);
}

TEST_F(IndexBasisFile, OnlyRegularFilesAreReplaced) {
  const auto basis = sample_basis(1, 1, 8, 4);
  const auto target = folder_.path() / "target";
  ASSERT_TRUE(write_index_basis(target, basis).ok());
  ASSERT_TRUE(write_index_basis(target, basis).ok());
  const auto link = folder_.path() / "link", pipe = folder_.path() / "pipe", folder = folder_.path() / "folder";
  fs::create_symlink(target, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_TRUE(fs::create_directory(folder));
  for (const auto& path : {link, pipe, folder}) {
    const auto kind = fs::symlink_status(path).type();
    const auto written = write_index_basis(path, basis);
    ASSERT_FALSE(written.ok()) << path;
    EXPECT_NE(written.error().message.find("not a regular file"), std::string::npos) << written.error().message;
    EXPECT_EQ(fs::symlink_status(path).type(), kind);
  }
}

}  // namespace
}  // namespace hotset::model
