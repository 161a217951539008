#include "model/safetensors_reader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/model/resource_use.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

std::string framed(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + data;
}
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class SafetensorsReaderTest : public ::testing::Test {
 protected:
  Result<SafetensorsFile> read(const std::string& bytes) {
    return read_safetensors(folder_.write("model.safetensors", bytes));
  }
  TemporaryFolder folder_;
};

TEST_F(SafetensorsReaderTest, GoodFile) {
  const std::string header = R"({"__metadata__":{"format":"pt","x":""},"b":)" + entry("F32", "[1,2]", "[4,12]") +
                             R"(,"a":)" + entry("BF16", "[2]", "[0,4]") + R"(,"empty":)" +
                             entry("F32", "[0,7]", "[12,12]") + R"(,"scalar":)" + entry("F8_E4M3", "[]", "[12,13]") +
                             "}   ";
  auto file = read(framed(header, "0123456789abX"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto& tensors = file.value().tensors;
  ASSERT_EQ(tensors.size(), 4U);
  const auto& b = tensors.find("b")->second;
  EXPECT_EQ(b.dtype, "F32");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.data.data()), b.data.size()), "456789ab");
  EXPECT_EQ(tensors.find("a")->second.data.size(), 4U);
  EXPECT_EQ(tensors.find("empty")->second.data.size(), 0U);
  EXPECT_EQ(tensors.find("scalar")->second.dtype, "F8_E4M3");
}

TEST_F(SafetensorsReaderTest, NoTensorsAreFine) { EXPECT_TRUE(read(framed("{}", "")).ok()); }

TEST_F(SafetensorsReaderTest, Fixture) {
  auto file = read_safetensors(fixture("tiny-llama") / "model.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().tensors.size(), 29U);
  EXPECT_EQ(file.value().tensors.find("model.embed_tokens.weight")->second.shape, (std::vector<std::int64_t>{512, 96}));
}

struct BadHeader {
  const char* what;
  std::string header;
  std::string data;
};

TEST_F(SafetensorsReaderTest, BadHeadersAreRefused) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":)" + entry(dtype, shape, offsets) + "}";
  };
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":)" + entry("U8", "[4]", first) + R"(,"b":)" + entry("U8", "[4]", second) + "}";
  };
  const BadHeader cases[] = {
      {"range shorter than the shape", one("F32", "[2]", "[0,4]"), "1234"},
      {"range longer than the shape", one("F32", "[1]", "[0,8]"), "12345678"},
      {"begin after end", one("U8", "[4]", "[4,0]"), "1234"},
      {"negative begin", one("U8", "[4]", "[-4,0]"), ""},
      {"negative end", one("U8", "[4]", "[0,-4]"), "1234"},
      {"negative dimension", one("U8", "[-4]", "[0,4]"), "1234"},
      {"two negative dimensions", one("U8", "[-2,-2]", "[0,4]"), "1234"},
      {"fractional offset", one("U8", "[4]", "[0,4.0]"), "1234"},
      {"offset as text", one("U8", "[4]", R"(["0","4"])"), "1234"},
      {"offset of 2^64", one("U8", "[4]", "[0,18446744073709551616]"), "1234"},
      {"offset of 2^64-1", one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), "1234"},
      {"product wraps", one("U8", "[4294967296,4294967296]", "[0,0]"), ""},
      {"bytes wrap", one("F64", "[2305843009213693952]", "[0,0]"), ""},
      {"one offset", one("U8", "[4]", "[0]"), "1234"},
      {"three offsets", one("U8", "[4]", "[0,4,4]"), "1234"},
      {"unknown dtype", one("U7", "[4]", "[0,4]"), "1234"},
      {"dtype in lower case", one("u8", "[4]", "[0,4]"), "1234"},
      {"no dtype", R"({"t":{"shape":[4],"data_offsets":[0,4]}})", "1234"},
      {"no shape", R"({"t":{"dtype":"U8","data_offsets":[0,4]}})", "1234"},
      {"no offsets", R"({"t":{"dtype":"U8","shape":[4]}})", "1234"},
      {"half a byte", one("F4", "[3]", "[0,2]"), "12"},
      {"past the end", one("U8", "[8]", "[0,8]"), "1234"},
      {"bytes left over", one("U8", "[4]", "[0,4]"), "12345"},
      {"does not begin at 0", one("U8", "[4]", "[1,5]"), "12345"},
      {"overlap", two("[0,4]", "[2,6]"), "123456"},
      {"the same bytes twice", two("[0,4]", "[0,4]"), "1234"},
      {"hole", two("[0,4]", "[5,9]"), "123456789"},
      {"tensor twice", R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"a":)" + entry("U8", "[4]", "[0,4]") + "}",
       "1234"},
      {"field twice", R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", "1234"},
      {"tensor is a number", R"({"a":4})", ""},
      {"metadata is a list", R"({"__metadata__":[]})", ""},
      {"metadata holds a number", R"({"__metadata__":{"a":1}})", ""},
      {"list", "[]", ""},
      {"number", "7", ""},
      {"empty header", "", ""},
      {"cut JSON", R"({"a":)", ""},
      {"two objects", "{}{}", ""},
      {"invalid UTF-8", "{\"a\xff\":" + entry("U8", "[4]", "[0,4]") + "}", "1234"},
      {"invalid UTF-8 in metadata", "{\"__metadata__\":{\"a\":\"\xc3\"}}", ""},
      {"nested shape", one("U8", "[[[4]]]", "[0,4]"), "1234"},
      {"nested objects", R"({"a":{"a":{"a":{"a":{"a":1}}}},"b":{"c":1,"d":2}})", ""},
      {"closed deep nesting", R"({"t":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}", ""},
      {"deep nesting", std::string(200'000, '['), ""},
  };
  for (const auto& bad : cases) {
    auto file = read(framed(bad.header, bad.data));
    ASSERT_FALSE(file.ok()) << bad.what;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << bad.what;
    EXPECT_NE(file.error().message.find("model.safetensors"), std::string::npos) << file.error().message;
  }
}

TEST_F(SafetensorsReaderTest, BadLengthsFailAtOnceAndAllocateNothing) {
  const ResourceUse use;
  for (const std::uint64_t length : {201ULL, 100'000'001ULL, 1ULL << 31, 1ULL << 63, ~0ULL, ~0ULL - 7}) {
    for (std::size_t size = 0; size <= 200; size += 5) {
      std::string bytes(8, '\0');
      std::memcpy(bytes.data(), &length, sizeof length);
      bytes += "{}";
      bytes.resize(size, ' ');
      EXPECT_FALSE(read(bytes).ok()) << size;
    }
  }
  EXPECT_LT(use.cpu_seconds(), 5.0);  // for 246 files
  EXPECT_LT(use.peak_growth_kib(), 100 * 1024);
}

}  // namespace
}  // namespace hotset::model
