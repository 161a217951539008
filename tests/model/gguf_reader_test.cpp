#include "model/gguf_reader.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/model/gguf_builder.h"
#include "tests/model/resource_use.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

class GgufReaderTest : public ::testing::Test {
 protected:
  Result<GgufFile> read(const std::string& bytes) { return read_gguf(folder_.write("model.gguf", bytes)); }
  TemporaryFolder folder_;
};

TEST_F(GgufReaderTest, EveryMetadataTypeIsRead) {
  GgufBuilder builder;
  builder.raw("u8", 0, as_bytes<std::uint8_t>(200));
  builder.raw("i8", 1, as_bytes<std::int8_t>(-100));
  builder.raw("u16", 2, as_bytes<std::uint16_t>(60000));
  builder.raw("i16", 3, as_bytes<std::int16_t>(-30000));
  builder.u32("u32", 4'000'000'000U);
  builder.raw("i32", 5, as_bytes<std::int32_t>(-2'000'000'000));
  builder.raw("u64", 10, as_bytes<std::uint64_t>(1ULL << 62));
  builder.raw("u64max", 10, as_bytes<std::uint64_t>(~0ULL));
  builder.raw("i64", 11, as_bytes<std::int64_t>(-(1LL << 62)));
  builder.f32("f32", 1.5F);
  builder.raw("f64", 12, as_bytes(2.25));
  builder.boolean("yes", true);
  builder.boolean("no", false);
  builder.text("text", "hello");
  builder.texts("texts", {"a", "", "ccc"});
  builder.array("ints", 5, 3, as_bytes<std::int32_t>(1) + as_bytes<std::int32_t>(-2) + as_bytes<std::int32_t>(3));
  builder.array("floats", 6, 2, as_bytes(0.5F) + as_bytes(-0.25F));
  builder.array("none", 4, 0, "");
  auto file = read(builder.build());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto& metadata = *file.value().metadata;

  EXPECT_EQ(metadata.integer("u8").value(), 200);
  EXPECT_EQ(metadata.integer("i8").value(), -100);
  EXPECT_EQ(metadata.integer("u16").value(), 60000);
  EXPECT_EQ(metadata.integer("i16").value(), -30000);
  EXPECT_EQ(metadata.integer("u32").value(), 4'000'000'000);
  EXPECT_EQ(metadata.integer("i32").value(), -2'000'000'000);
  EXPECT_EQ(metadata.integer("u64").value(), std::int64_t{1} << 62);
  EXPECT_EQ(metadata.integer("i64").value(), -(std::int64_t{1} << 62));
  EXPECT_EQ(metadata.number("f32").value(), 1.5);
  EXPECT_EQ(metadata.number("f64").value(), 2.25);
  EXPECT_EQ(metadata.boolean("yes").value(), true);
  EXPECT_EQ(metadata.boolean("no").value(), false);
  EXPECT_EQ(metadata.string("text").value(), "hello");
  EXPECT_EQ(metadata.strings("texts").value(), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(metadata.integers("ints").value(), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(metadata.numbers("floats").value(), (std::vector<double>{0.5, -0.25}));
  EXPECT_EQ(metadata.integers("none").value(), std::vector<std::int64_t>());
  EXPECT_EQ(metadata.keys().size(), 18U);

  EXPECT_EQ(metadata.integer("absent").value(), std::nullopt);
  EXPECT_FALSE(metadata.integer("u64max").ok());
  EXPECT_FALSE(metadata.integer("f32").ok());
  EXPECT_FALSE(metadata.integer("ints").ok());
  EXPECT_FALSE(metadata.number("u32").ok());
  EXPECT_FALSE(metadata.boolean("u8").ok());
  EXPECT_FALSE(metadata.string("texts").ok());
  EXPECT_FALSE(metadata.strings("text").ok());
  EXPECT_FALSE(metadata.strings("ints").ok());
  EXPECT_FALSE(metadata.integers("floats").ok());
  EXPECT_FALSE(metadata.numbers("texts").ok());
}

TEST_F(GgufReaderTest, EveryFormatIsReadByteForByte) {
  for (const std::uint32_t version : {2U, 3U}) {
    auto builder = small_model("llama");
    builder.version = version;
    auto file = read(builder.build());
    ASSERT_TRUE(file.ok()) << file.error().message;
    const std::pair<const char*, const char*> types[] = {
        {"token_embd.weight", "F16"},      {"output.weight", "Q8_0"},       {"output_norm.weight", "F32"},
        {"blk.0.attn_q.weight", "Q4_K"},   {"blk.0.attn_k.weight", "Q4_0"}, {"blk.0.attn_v.weight", "Q5_K"},
        {"blk.0.ffn_gate.weight", "Q6_K"}, {"blk.0.ffn_up.weight", "BF16"}, {"blk.0.ffn_down.weight", "Q4_1"}};
    for (const auto& [name, type] : types) {
      const auto it = file.value().tensors.find(name);
      ASSERT_NE(it, file.value().tensors.end()) << name;
      EXPECT_EQ(weight_type_name(it->second.type), type);
      const auto& written = builder.find_tensor(name);
      EXPECT_EQ(std::vector<std::uint64_t>(it->second.shape.begin(), it->second.shape.end()), written.shape);
      ASSERT_EQ(it->second.data.size(), written.data.size());
      EXPECT_EQ(std::memcmp(it->second.data.data(), written.data.data(), written.data.size()), 0) << name;
    }
  }
}

TEST_F(GgufReaderTest, AnotherAlignmentIsFollowed) {
  auto builder = small_model("llama");
  builder.alignment = 256;
  builder.u32("general.alignment", 256);
  auto file = read(builder.build());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto& written = builder.find_tensor("blk.0.ffn_down.weight");
  const auto& data = file.value().tensors.find("blk.0.ffn_down.weight")->second.data;
  EXPECT_EQ(std::memcmp(data.data(), written.data.data(), written.data.size()), 0);
}

struct BadFile {
  const char* what;
  const char* message;  // part of it
  std::function<void(GgufBuilder&)> change;
};

TEST_F(GgufReaderTest, BadFilesAreRefusedWithTheirReason) {
  const auto norm = [](GgufBuilder& b) -> GgufBuilder::Tensor& { return b.find_tensor("output_norm.weight"); };
  const std::uint64_t huge = 1ULL << 63;
  const BadFile cases[] = {
      {"version 1", "version 1", [](auto& b) { b.version = 1; }},
      {"version 4", "version 4", [](auto& b) { b.version = 4; }},
      {"big endian", "big-endian", [](auto& b) { b.version = 0x03000000; }},
      {"many tensors", "tensors", [&](auto& b) { b.claimed_tensors = huge; }},
      {"one tensor more", "tensor table",
       [](auto& b) {
         b.claimed_tensors = 100;
         b.claimed_pairs = 17;
       }},
      {"many pairs", "metadata entries", [&](auto& b) { b.claimed_pairs = huge; }},
      {"long array", "runs past", [&](auto& b) { b.array("x", 4, huge, ""); }},
      {"array whose bytes wrap", "runs past", [&](auto& b) { b.array("x", 10, (1ULL << 61) + 1, "12345678"); }},
      {"long array of texts", "runs past", [&](auto& b) { b.array("x", 8, huge, gguf_text("a")); }},
      {"long text", "runs past", [&](auto& b) { b.raw("x", 8, as_bytes(huge) + "abc"); }},
      {"unknown value type", "unknown type 13", [](auto& b) { b.raw("x", 13, "12345678"); }},
      {"array of arrays", "unknown type 9", [](auto& b) { b.array("x", 9, 1, as_bytes<std::uint64_t>(0)); }},
      {"key twice", "appears twice", [](auto& b) { b.repeat_pair("general.name"); }},
      {"alignment 0", "general.alignment", [](auto& b) { b.u32("general.alignment", 0); }},
      {"alignment 24", "general.alignment", [](auto& b) { b.u32("general.alignment", 24); }},
      {"alignment as text", "general.alignment", [](auto& b) { b.text("general.alignment", "32"); }},
      {"alignment 2^31", "general.alignment", [](auto& b) { b.u32("general.alignment", 1U << 31); }},
      {"dimension 0", "output_norm.weight", [&](auto& b) { norm(b).shape = {0}; }},
      {"dimension 2^63", "output_norm.weight", [&](auto& b) { norm(b).shape = {huge}; }},
      {"dimension 2^42+1", "output_norm.weight", [&](auto& b) { norm(b).shape = {(1ULL << 42) + 1}; }},
      {"product wraps", "output_norm.weight", [&](auto& b) { norm(b).shape = {1ULL << 32, 1ULL << 32}; }},
      {"bytes wrap", "output_norm.weight", [&](auto& b) { norm(b).shape = {1ULL << 31, 1ULL << 31}; }},
      {"no dimensions", "0 dimensions", [&](auto& b) { norm(b).shape = {}; }},
      {"5 dimensions", "5 dimensions", [&](auto& b) { norm(b).shape = {1, 1, 1, 1, 256}; }},
      {"2^32-1 dimensions", "dimensions", [&](auto& b) { norm(b).claimed_dimensions = ~0U; }},
      {"Q5_0", "Q5_0", [&](auto& b) { norm(b).type = 6; }},
      {"IQ4_NL", "IQ4_NL", [&](auto& b) { norm(b).type = 20; }},
      {"removed type", "unknown type number 4", [&](auto& b) { norm(b).type = 4; }},
      {"type 2^32-1", "unknown type number 4294967295", [&](auto& b) { norm(b).type = ~0U; }},
      {"row is no whole block", "multiple of the 32",
       [&](auto& b) {
         norm(b).shape = {8, 31};
         norm(b).type = 8;
       }},
      {"offset past the end", "past the end", [&](auto& b) { norm(b).claimed_offset = 1ULL << 40; }},
      {"offset near 2^64", "past the end", [&](auto& b) { norm(b).claimed_offset = ~0ULL - 31; }},
      {"unaligned offset", "not aligned", [&](auto& b) { norm(b).claimed_offset = 8; }},
      {"overlap", "overlaps", [&](auto& b) { norm(b).claimed_offset = 32; }},
      {"name twice", "appears twice", [&](auto& b) { norm(b).name = "output.weight"; }},
  };
  for (const auto& bad : cases) {
    auto builder = small_model("llama");
    bad.change(builder);
    auto file = read(builder.build());
    ASSERT_FALSE(file.ok()) << bad.what;
    EXPECT_NE(file.error().message.find(bad.message), std::string::npos) << bad.what << ": " << file.error().message;
  }
}

TEST_F(GgufReaderTest, EveryCutIsRefused) {
  auto builder = small_model("llama");
  const auto bytes = builder.build();
  // The last tensor's data may end before the padding does.
  const auto last = builder.find_tensor("blk.0.ffn_down.weight").data.size();
  ASSERT_EQ(last % 32, 0U);
  for (std::size_t size = 0; size < bytes.size(); size += size < builder.header_bytes() ? 1 : 997) {
    EXPECT_FALSE(read(bytes.substr(0, size)).ok()) << size;
  }
}

TEST_F(GgufReaderTest, ShortFilesWithHugeCountsFailAtOnceAndAllocateNothing) {
  const ResourceUse use;
  for (const std::uint64_t count : {1ULL << 31, 1ULL << 63, ~0ULL}) {
    for (std::size_t size = 8; size <= 200; size += 8) {
      const auto fill = as_bytes(count);
      // The count stands where the tensor count, the pair count, a key's length, a text's length and an array's count
      // are.
      const std::string head = "GGUF" + as_bytes<std::uint32_t>(3);
      const std::string one = as_bytes<std::uint64_t>(1);
      const std::string none = as_bytes<std::uint64_t>(0);
      const std::string files[] = {
          head + fill + none,
          head + none + fill,
          head + none + one + fill,
          head + none + one + gguf_text("k") + as_bytes<std::uint32_t>(8) + fill,
          head + none + one + gguf_text("k") + as_bytes<std::uint32_t>(9) + as_bytes<std::uint32_t>(8) + fill,
          head + none + one + gguf_text("k") + as_bytes<std::uint32_t>(9) + as_bytes<std::uint32_t>(0) + fill,
          head + one + none + fill,
          head + one + none + gguf_text("t") + as_bytes<std::uint32_t>(2) + fill + fill + none + none};
      for (auto bytes : files) {
        bytes.resize(size, '\x01');
        EXPECT_FALSE(read(bytes).ok()) << size;
      }
    }
  }
  EXPECT_LT(use.cpu_seconds(), 5.0);  // for 600 files
  EXPECT_LT(use.peak_growth_kib(), 100 * 1024);
}

TEST_F(GgufReaderTest, OtherFilesAreRefused) {
  EXPECT_EQ(read_gguf(folder_.path() / "absent.gguf").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(read_gguf(folder_.path()).ok());
  EXPECT_FALSE(read("").ok());
  EXPECT_FALSE(read(std::string(4096, '\0')).ok());
  EXPECT_FALSE(read("ggml" + std::string(100, '\1')).ok());
}

}  // namespace
}  // namespace hotset::model
