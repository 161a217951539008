#include "sparse/selection_trace.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <string>
#include <vector>

#include "core/concat.h"
#include "tests/model/temporary_folder.h"
#include "tests/seed.h"

namespace hotset::sparse {
namespace {

using model::TemporaryFolder;

// A record that owns its blocks.
struct Row {
  SelectionRecord record;
  std::vector<std::int32_t> blocks;

  [[nodiscard]] SelectionRecord view() const {
    SelectionRecord out = record;
    out.blocks = blocks;
    return out;
  }
  bool operator==(const Row& other) const {
    const auto& a = record;
    const auto& b = other.record;
    return a.step == b.step && a.sequence == b.sequence && a.layer == b.layer && a.position == b.position &&
           a.block_tokens == b.block_tokens && a.prefill == b.prefill && a.everything == b.everything &&
           blocks == other.blocks;
  }
};

Row selected(std::uint64_t step, std::uint64_t sequence, std::int32_t layer, std::int64_t position,
             std::vector<std::int32_t> blocks) {
  Row row;
  row.record.step = step;
  row.record.sequence = SequenceId{sequence};
  row.record.layer = LayerId{layer};
  row.record.position = position;
  row.blocks = std::move(blocks);
  return row;
}

struct Content {
  std::vector<Row> rows;
  std::string error;  // empty: read to the end
};

Content read_trace(const std::filesystem::path& path) {
  Content content;
  auto reader = TraceReader::open(path);
  if (!reader) return {{}, reader.error().message};
  while (true) {
    const auto record = reader.value()->next();
    if (!record) {
      content.error = record.error().message;
      EXPECT_EQ(record.error().code, ErrorCode::kCorrupt);
      EXPECT_FALSE(reader.value()->next().ok()) << "nothing follows an error";
      return content;
    }
    if (!record.value()) return content;
    content.rows.push_back({*record.value(), {record.value()->blocks.begin(), record.value()->blocks.end()}});
  }
}

std::vector<Row> random_rows(std::mt19937_64& random, std::size_t count, std::int32_t layers) {
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  std::vector<Row> rows;
  std::uint64_t step = 0;
  for (std::size_t i = 0; i < count; ++i) {
    step += pick(0, 5) > 0 ? 0 : static_cast<std::uint64_t>(pick(0, 3) > 0 ? 1 : pick(1, 1LL << 40));
    Row row;
    row.record.step = step;
    row.record.sequence = SequenceId{pick(0, 3) > 0 ? static_cast<std::uint64_t>(pick(0, 3)) : random()};
    row.record.layer = LayerId{static_cast<std::int32_t>(pick(0, layers - 1))};
    row.record.block_tokens = 1 << pick(0, 6);
    row.record.position = pick(0, 9) > 0 ? pick(0, 9'000) : pick(0, 1LL << 31);
    row.record.prefill = pick(0, 1) > 0;
    row.record.everything = pick(0, 4) == 0;
    const std::int64_t last = row.record.position / row.record.block_tokens;
    for (std::int64_t block = pick(0, 40); !row.record.everything && block <= last && row.blocks.size() < 300;
         block += 1 + pick(0, pick(0, 99) > 0 ? 20 : last))
      row.blocks.push_back(static_cast<std::int32_t>(block));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::unique_ptr<TraceWriter> create(const std::filesystem::path& path, std::int32_t layers = 30) {
  auto writer = TraceWriter::create(path, {"SmolLM2", "lowrank", layers, 128});
  EXPECT_TRUE(writer.ok()) << (writer.ok() ? "" : writer.error().message);
  return std::move(writer).value();
}

void write_trace(const std::filesystem::path& path, const std::vector<Row>& rows, std::size_t rows_a_chunk = 0) {
  const auto writer = create(path);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    writer->observe(rows[i].view());
    if (rows_a_chunk > 0 && (i + 1) % rows_a_chunk == 0) writer->flush();
  }
  EXPECT_TRUE(writer->recording());
}

// The polynomial of zlib, bit by bit.
std::uint32_t slow_crc32(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~crc;
}
std::string u32(std::uint32_t value) {
  std::string out;
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}
std::string chunk(const std::string& payload, std::uint32_t records) {
  const std::string lengths = u32(static_cast<std::uint32_t>(payload.size())) + u32(records);
  return lengths + u32(slow_crc32(lengths + payload)) + payload;
}
std::string header(const std::string& payload, std::uint32_t version = 1) {
  const std::string start = u32(version) + u32(static_cast<std::uint32_t>(payload.size()));
  return "HOTTRACE" + start + u32(slow_crc32(start + payload)) + payload;
}
const std::string kHeader = header(std::string("\x02\x80\x01\x01m\x07lowrank", 13));  // 2 layers, ring of 128

TEST(SelectionTrace, BytesOfTheDocumentedExample) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "example.trace";
  {
    const auto writer = TraceWriter::create(path, {"m", "lowrank", 2, 128});
    ASSERT_TRUE(writer.ok());
    writer.value()->observe(selected(7, 300, 1, 4'100, {0, 1, 9, 4'099, 4'100}).view());
    Row everything = selected(8, 2, 0, 5, {});
    everything.record.block_tokens = 16;
    everything.record.prefill = everything.record.everything = true;
    writer.value()->observe(everything.view());
  }
  // docs/trace_format.md, "Example"; the checksums there were computed with Python's zlib.
  static constexpr unsigned char kExpected[] = {
      0x48, 0x4f, 0x54, 0x54, 0x52, 0x41, 0x43, 0x45, 0x01, 0x00, 0x00, 0x00, 0x0d, 0x00,
      0x00, 0x00, 0x80, 0x74, 0x25, 0x12,                                                  //
      0x02, 0x80, 0x01, 0x01, 0x6d, 0x07, 0x6c, 0x6f, 0x77, 0x72, 0x61, 0x6e, 0x6b,        //
      0x13, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0xfc, 0xc0, 0xad, 0xc7,              //
      0x07, 0x00, 0xac, 0x02, 0x01, 0x84, 0x20, 0x05, 0x00, 0x00, 0x07, 0xf9, 0x1f, 0x00,  //
      0x01, 0x13, 0x02, 0x00, 0x05};
  EXPECT_EQ(model::read_bytes(path), std::string(reinterpret_cast<const char*>(kExpected), sizeof kExpected));
  const Content content = read_trace(path);
  EXPECT_EQ(content.error, "");
  ASSERT_EQ(content.rows.size(), 2U);
  EXPECT_EQ(content.rows[0], selected(7, 300, 1, 4'100, {0, 1, 9, 4'099, 4'100}));
  EXPECT_TRUE(content.rows[1].record.everything);
  EXPECT_EQ(TraceReader::open(path).value()->header(), (TraceHeader{"m", "lowrank", 2, 128}));
}

TEST(SelectionTrace, RandomRecordsComeBack) {
  std::mt19937_64 random(test_seed(20'260'401));
  const TemporaryFolder folder;
  const auto path = folder.path() / "random.trace";
  const std::vector<Row> rows = random_rows(random, 20'000, 30);
  write_trace(path, rows);
  const Content content = read_trace(path);
  EXPECT_EQ(content.error, "");
  ASSERT_EQ(content.rows.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(content.rows[i], rows[i]) << i;
  // Large enough that chunks end by their bytes as well as by their records.
  EXPECT_GT(std::filesystem::file_size(path), 5U * (256 << 10));
}

TEST(SelectionTrace, TakesAboutOneByteForEachEntry) {
  std::mt19937_64 random(1);
  const TemporaryFolder folder;
  const auto path = folder.path() / "size.trace";
  std::vector<std::int32_t> everything(8'192);
  for (std::size_t i = 0; i < everything.size(); ++i) everything[i] = static_cast<std::int32_t>(i);
  std::vector<Row> rows;
  for (int i = 0; i < 100; ++i) {
    rows.push_back(selected(static_cast<std::uint64_t>(i), 1, 0, 8'191, {}));
    std::ranges::sample(everything, std::back_inserter(rows.back().blocks), 1'024, random);
  }
  write_trace(path, rows);
  EXPECT_LT(std::filesystem::file_size(path), 100 * 1'024 * 1.02);
}

TEST(SelectionTrace, ACutFileGivesItsWholeChunksThenAnError) {
  std::mt19937_64 random(2);
  const TemporaryFolder folder;
  const std::vector<Row> rows = random_rows(random, 12, 30);
  const auto whole = folder.path() / "whole.trace";
  write_trace(whole, rows, 3);
  const std::string bytes = model::read_bytes(whole);
  std::vector<std::size_t> chunk_begins;  // and the end
  {
    const auto at = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])); };
    std::size_t next = 20 + at(12);
    for (; next < bytes.size(); next += 12 + (at(next) | at(next + 1) << 8)) chunk_begins.push_back(next);
    ASSERT_EQ(next, bytes.size());
    ASSERT_EQ(chunk_begins.size(), 4U);
    chunk_begins.push_back(next);
  }
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    SCOPED_TRACE(size);
    const Content content = read_trace(folder.write("cut.trace", bytes.substr(0, size)));
    if (size < chunk_begins[0]) {
      EXPECT_NE(content.error.find(size < 8 ? "not a trace" : "cut off at byte 0"), std::string::npos) << content.error;
      EXPECT_TRUE(content.rows.empty());
      continue;
    }
    const auto after = std::ranges::upper_bound(chunk_begins, size);
    const auto chunks = static_cast<std::size_t>(after - chunk_begins.begin()) - 1;
    ASSERT_EQ(content.rows.size(), 3 * chunks);
    EXPECT_TRUE(std::equal(content.rows.begin(), content.rows.end(), rows.begin()));
    if (chunk_begins[chunks] == size) {
      EXPECT_EQ(content.error, "");
    } else {
      EXPECT_NE(
          content.error.find(concat("cut off: it ends inside the chunk that begins at byte ", chunk_begins[chunks])),
          std::string::npos)
          << content.error;
    }
  }
}

TEST(SelectionTrace, EveryFlippedBitIsFound) {
  std::mt19937_64 random(3);
  const TemporaryFolder folder;
  const std::vector<Row> rows = random_rows(random, 6, 30);
  const auto whole = folder.path() / "whole.trace";
  write_trace(whole, rows, 2);
  const std::string bytes = model::read_bytes(whole);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    SCOPED_TRACE(bit);
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const Content content = read_trace(folder.write("flipped.trace", flipped));
    ASSERT_NE(content.error, "");
    ASSERT_LT(content.rows.size(), rows.size());
    ASSERT_TRUE(std::equal(content.rows.begin(), content.rows.end(), rows.begin()));
  }
}

TEST(SelectionTrace, RecordsThatCantBeAreDamageEvenWithARightChecksum) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& payload, std::uint32_t records) {
    const Content content = read_trace(folder.write("bad.trace", kHeader + chunk(payload, records)));
    return content.error;
  };
  using namespace std::string_literals;
  // step, flags, sequence, layer, position, count, blocks
  EXPECT_EQ(error("\x00\x00\x00\x01\x05\x02\x00\x04"s, 1), "");
  const auto invalid = [&](const std::string& payload, std::uint32_t records) {
    const std::string message = error(payload, records);
    return message.find(concat("a record is not valid, in the chunk that begins at byte ", kHeader.size())) !=
           std::string::npos;
  };
  EXPECT_TRUE(invalid("\x00\x00\x00\x02\x05\x02\x00\x04"s, 1)) << "layer 2 of 2";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\x05\x02\x00\x05"s, 1)) << "a block after the query";
  EXPECT_TRUE(invalid("\x00\x04\x00\x01\x05\x02\x00\x02"s, 1)) << "a block of 2 tokens after the query";
  EXPECT_TRUE(invalid("\x00\x1c\x00\x01\x05\x01\x00"s, 1)) << "blocks of 128 tokens";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\x05\x03\x00\x04"s, 1)) << "more blocks than bytes";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"s, 1)) << "2^64 - 1 blocks";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"s, 1)) << "position 2^64 - 1";
  EXPECT_TRUE(invalid("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x05\x00"s, 1)) << "a number of 65 bits";
  EXPECT_TRUE(invalid("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x05\x00\x01\x00\x00\x00\x05\x00"s, 2))
      << "steps beyond 64 bits";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\x05\x01\x00\x00"s, 1)) << "a byte too many";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\x05\x01\x00"s, 2)) << "a record too few";
  EXPECT_TRUE(invalid("\x00\x00\x00\x01\x05\x01\x00"s, 0xFFFFFFFF)) << "many records too few";
}

TEST(SelectionTrace, LengthsThatCantBeAreDamage) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& bytes) { return read_trace(folder.write("bad.trace", bytes)).error; };
  using namespace std::string_literals;
  EXPECT_EQ(error(kHeader), "") << "an empty trace";
  EXPECT_NE(error(kHeader + chunk("", 1)).find("damaged"), std::string::npos);
  EXPECT_NE(error(kHeader + chunk("\x00\x02\x00\x01\x05"s, 0)).find("damaged"), std::string::npos);
  EXPECT_NE(error(kHeader + u32(0xFFFFFFFF) + u32(1) + u32(0)).find("damaged"), std::string::npos);
  EXPECT_NE(error(kHeader + u32(16 << 20) + u32(1) + u32(0)).find("cut off"), std::string::npos);

  EXPECT_NE(error(header("\x00\x00\x00\x00"s)).find("header is damaged"), std::string::npos) << "no layers";
  EXPECT_NE(error(header("\x01\x00\x05m\x00"s)).find("header is damaged"), std::string::npos) << "name too long";
  EXPECT_NE(error(header("\x01\x00\x00\x00\x00"s)).find("header is damaged"), std::string::npos) << "a byte too many";
  EXPECT_NE(error(header("\x01\x00\x00"s)).find("header is damaged"), std::string::npos) << "a name too few";
  EXPECT_NE(error(header(std::string(5'000, 'x'))).find("header is damaged"), std::string::npos);
  EXPECT_EQ(error(header("\x01\x00\x00\x00"s)), "");
  EXPECT_NE(error(header("\x01\x00\x00\x00"s, 2)).find("version 2; this program reads version 1"), std::string::npos);
}

TEST(SelectionTrace, WhatIsNoTraceIsSaid) {
  const TemporaryFolder folder;
  const auto code = [](const std::filesystem::path& path) { return TraceReader::open(path).error().code; };
  EXPECT_EQ(code(folder.path() / "absent.trace"), ErrorCode::kNotFound);
  EXPECT_EQ(code(folder.path()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("/dev/null"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder.write("text", "something else entirely")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder.write("empty", "")), ErrorCode::kInvalidArgument);
}

TEST(SelectionTrace, APathThatCantBeWrittenIsRefusedByTheOptionsName) {
  const TemporaryFolder folder;
  const auto error = [](const std::filesystem::path& path) {
    const auto writer = TraceWriter::create(path, {"m", "lowrank", 2, 128});
    if (writer.ok()) return std::string();
    EXPECT_EQ(writer.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(writer.error().param, "--trace-selections");
    return writer.error().message;
  };
  EXPECT_NE(error(folder.path() / "no" / "folder").find("--trace-selections"), std::string::npos);
  EXPECT_NE(error(folder.path()), "");
  EXPECT_NE(error("/dev/full"), "");
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(error(pipe), "");
  const auto other = folder.write("model.gguf", "GGUF, and much more");
  EXPECT_NE(error(other).find("not overwritten"), std::string::npos);
  EXPECT_EQ(model::read_bytes(other), "GGUF, and much more");

  const auto path = folder.path() / "selections.trace";
  write_trace(path, {selected(1, 1, 0, 5, {1, 2})});
  {
    const auto writer = create(path);
    EXPECT_NE(error(path).find("another server"), std::string::npos);
  }
  EXPECT_TRUE(read_trace(path).rows.empty()) << "an earlier trace is replaced";
  EXPECT_FALSE(TraceWriter::create(path, {"m", "lowrank", 0, 128}).ok());
}

TEST(SelectionTrace, LongNamesAreCut) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "names.trace";
  ASSERT_TRUE(TraceWriter::create(path, {std::string(5'000, 'm'), std::string(5'000, 'a'), 2, 128}).ok());
  EXPECT_EQ(TraceReader::open(path).value()->header().model, std::string(1'024, 'm'));
}

// A disk that is full, as far as a process can make one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(SelectionTrace, AFullDiskEndsTheRecordingOnceAndLeavesAWholeTrace) {
  std::mt19937_64 random(4);
  const TemporaryFolder folder;
  const auto path = folder.path() / "full.trace";
  const std::vector<Row> rows = random_rows(random, 1'000, 30);
  testing::internal::CaptureStderr();
  {
    const auto writer = create(path);
    const FileSizeLimit limit(20'000);
    for (const Row& row : rows) {
      writer->observe(row.view());
      writer->flush();
    }
    EXPECT_FALSE(writer->recording());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const auto first = log.find("--trace-selections");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("--trace-selections", first + 1), std::string::npos) << log;
  const Content content = read_trace(path);
  EXPECT_EQ(content.error, "");
  EXPECT_GT(content.rows.size(), 10U);
  EXPECT_LT(content.rows.size(), rows.size());
  EXPECT_TRUE(std::equal(content.rows.begin(), content.rows.end(), rows.begin()));
}

TEST(SelectionTrace, ARecordThatBreaksTheContractEndsTheRecording) {
  const Row good = selected(5, 1, 0, 100, {3, 7});
  std::vector<Row> broken(9, good);
  broken[0].blocks = {7, 3};
  broken[1].blocks = {3, 3};
  broken[2].blocks = {-1, 3};
  broken[3].blocks = {3, 101};
  broken[4].record.layer = LayerId{30};
  broken[5].record.position = -1;
  broken[6].record.block_tokens = 12;
  broken[7].record.everything = true;  // with blocks
  broken[8].record.step = 4;
  for (const Row& bad : broken) {
    const TemporaryFolder folder;
    const auto path = folder.path() / "broken.trace";
    testing::internal::CaptureStderr();
    {
      const auto writer = create(path);
      writer->observe(good.view());
      EXPECT_TRUE(writer->recording());
      writer->observe(bad.view());
      EXPECT_FALSE(writer->recording());
      writer->observe(good.view());
    }
    EXPECT_NE(testing::internal::GetCapturedStderr().find("--trace-selections"), std::string::npos);
    const Content content = read_trace(path);
    EXPECT_EQ(content.error, "");
    EXPECT_EQ(content.rows, std::vector<Row>{good});
  }
}

}  // namespace
}  // namespace hotset::sparse
