#include "sparse/selection_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "core/log.h"

namespace hotset::sparse {
namespace {

constexpr std::string_view kMagic = "HOTTRACE";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kFileHeaderBytes = 20;   // magic, version, bytes of the names' part, checksum
constexpr std::size_t kChunkHeaderBytes = 12;  // payload bytes, records, checksum
constexpr std::size_t kMostNameBytes = 1024;
constexpr std::size_t kMostHeaderPayload = 4096;
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::uint32_t kChunkRecords = 4096;
constexpr std::size_t kMostChunkBytes = 32 << 20;  // one huge record may be a chunk
constexpr std::size_t kMostBlocks = 4 << 20;       // of a record: at 5 bytes for each, still a chunk
constexpr std::int32_t kMostLayers = 1 << 16;
constexpr std::int64_t kMostPosition = std::int64_t{1} << 40;

constexpr std::uint64_t kPrefillFlag = 1;
constexpr std::uint64_t kEverythingFlag = 2;
constexpr int kBlockSizeShift = 2;  // the flags' upper bits: log2(B)
constexpr std::uint64_t kMostBlockSize = 6;
static_assert(std::int64_t{1} << kMostBlockSize == kPageTokens);

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0);
    table[i] = value;
  }
  return table;
}

// CRC-32 of IEEE 802.3, the one of zlib: any program can check a trace. `before`: of the bytes that precede these.
std::uint32_t crc32(std::span<const std::uint8_t> bytes, std::uint32_t before = 0) {
  static constexpr auto kTable = make_crc_table();
  std::uint32_t crc = ~before;
  for (const std::uint8_t byte : bytes) crc = kTable[(crc ^ byte) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

void store_u32(std::uint32_t value, std::uint8_t* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<std::uint8_t>(value >> (8 * i));
}
std::uint32_t load_u32(const std::uint8_t* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  return value;
}

void put_name(std::string_view name, std::vector<std::uint8_t>& out) {
  name = name.substr(0, kMostNameBytes);
  put_number(name.size(), out);
  out.insert(out.end(), name.begin(), name.end());
}

std::vector<std::uint8_t> header_bytes(const TraceHeader& header) {
  std::vector<std::uint8_t> out(kFileHeaderBytes);
  put_number(static_cast<std::uint64_t>(header.layers), out);
  put_number(static_cast<std::uint64_t>(header.hot_ring), out);
  put_name(header.model, out);
  put_name(header.algorithm, out);
  std::copy(kMagic.begin(), kMagic.end(), out.begin());
  store_u32(kVersion, &out[8]);
  store_u32(static_cast<std::uint32_t>(out.size() - kFileHeaderBytes), &out[12]);
  const std::span<const std::uint8_t> bytes(out);
  store_u32(crc32(bytes.subspan(kFileHeaderBytes), crc32(bytes.subspan(8, 8))), &out[16]);
  return out;
}

std::string system_message(int error) { return std::generic_category().message(error); }

Error not_writable(const std::filesystem::path& path, const std::string& reason) {
  return invalid_argument(concat("--trace-selections ", path.string(), ": ", reason), "--trace-selections");
}

// Why an open file must not become a trace; empty: it may.
std::string reason_against(int file) {
  struct stat status{};
  if (fstat(file, &status) != 0) return system_message(errno);
  if (!S_ISREG(status.st_mode)) return "it is not a regular file";
  if (flock(file, LOCK_EX | LOCK_NB) != 0) return "another server writes it";
  if (status.st_size == 0) return {};
  std::array<char, kMagic.size()> start{};
  const ssize_t got = pread(file, start.data(), start.size(), 0);
  if (got != static_cast<ssize_t>(start.size()) || std::string_view(start.data(), start.size()) != kMagic)
    return "the file is there and is not a trace; it is not overwritten";
  return ftruncate(file, 0) == 0 ? std::string() : system_message(errno);
}

// Writes all of it, or tells the error's number.
int write_bytes(int file, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    if (wrote == 0) return EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::filesystem::path& path, const TraceHeader& header) {
  if (header.layers < 1 || header.layers > kMostLayers || header.hot_ring < 0)
    return not_writable(path, concat("a trace has 1 to ", kMostLayers, " layers, not ", header.layers));
  // Without O_NONBLOCK a named pipe would stop the start.
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  if (file < 0) return not_writable(path, concat("it can't be written: ", system_message(errno)));
  const std::vector<std::uint8_t> start = header_bytes(header);
  std::string reason = reason_against(file);
  if (reason.empty()) {
    const int error = write_bytes(file, start);
    if (error != 0) reason = concat("it can't be written: ", system_message(error));
  }
  if (!reason.empty()) {
    ::close(file);
    return not_writable(path, reason);
  }
  std::unique_ptr<TraceWriter> writer(new TraceWriter(file, path, header.layers));
  writer->written_ = start.size();
  return writer;
}

TraceWriter::TraceWriter(int file, std::filesystem::path path, std::int32_t layers)
    : file_(file), path_(std::move(path)), layers_(layers) {
  buffer_.reserve(kChunkBytes + (64 << 10));
  buffer_.resize(kChunkHeaderBytes);
}

TraceWriter::~TraceWriter() {
  flush();
  if (recording()) ::close(file_);
}

void TraceWriter::observe(const SelectionRecord& record) {
  if (!recording()) return;
  const std::size_t before = buffer_.size();
  if (!append(record)) {
    buffer_.resize(before);
    flush();
    stop(concat("the selection of layer ", record.layer.value(), " at position ", record.position,
                " is not one that a trace can hold"));
    return;
  }
  ++records_;
  if (buffer_.size() >= kChunkBytes || records_ >= kChunkRecords) flush();
}

bool TraceWriter::append(const SelectionRecord& record) {
  const std::int32_t layer = record.layer.value();
  const auto block_tokens = static_cast<std::uint32_t>(record.block_tokens);
  if (record.block_tokens < 1 || !std::has_single_bit(block_tokens) || record.block_tokens > kPageTokens) return false;
  if (layer < 0 || layer >= layers_ || record.position < 0 || record.position > kMostPosition) return false;
  if (record.step < last_step_ && records_ > 0) return false;
  if (record.blocks.size() > kMostBlocks || (record.everything && !record.blocks.empty())) return false;
  if (!record.blocks.empty() && record.blocks.back() > record.position / record.block_tokens) return false;

  put_number(record.step - (records_ > 0 ? last_step_ : 0), buffer_);
  const auto block_size = static_cast<std::uint64_t>(std::countr_zero(block_tokens));
  put_number(
      (record.prefill ? kPrefillFlag : 0) | (record.everything ? kEverythingFlag : 0) | block_size << kBlockSizeShift,
      buffer_);
  put_number(record.sequence.value(), buffer_);
  put_number(static_cast<std::uint64_t>(layer), buffer_);
  put_number(static_cast<std::uint64_t>(record.position), buffer_);
  last_step_ = record.step;
  if (record.everything) return true;
  put_number(record.blocks.size(), buffer_);
  return put_blocks(record.blocks, buffer_);
}

void TraceWriter::flush() {
  if (!recording() || records_ == 0) return;
  store_u32(static_cast<std::uint32_t>(buffer_.size() - kChunkHeaderBytes), buffer_.data());
  store_u32(records_, buffer_.data() + 4);
  const std::span<const std::uint8_t> bytes(buffer_);
  store_u32(crc32(bytes.subspan(kChunkHeaderBytes), crc32(bytes.first(8))), buffer_.data() + 8);
  if (const int error = write_bytes(file_, bytes); error != 0) {
    stop(system_message(error));
    return;
  }
  written_ += buffer_.size();
  buffer_.resize(kChunkHeaderBytes);
  records_ = 0;
}

void TraceWriter::stop(const std::string& reason) {
  log_error("--trace-selections: recording in ", path_.string(), " ends: ", reason);
  // What a failed write left of its chunk would read as damage. When even this fails, it does.
  [[maybe_unused]] const int ignored = ftruncate(file_, static_cast<off_t>(written_));
  ::close(file_);
  file_ = -1;
  buffer_ = {};
}

Result<std::unique_ptr<TraceReader>> TraceReader::open(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return Error{ErrorCode::kNotFound, concat(path.string(), ": there is no such file"), {}};
  if (status.type() != std::filesystem::file_type::regular)
    return invalid_argument(concat(path.string(), " is not a regular file"));
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return invalid_argument(concat(path.string(), " can't be read"));
  std::unique_ptr<TraceReader> reader(new TraceReader(path, std::move(file), size));
  if (auto read = reader->read_header(); !read) return read.error();
  return reader;
}

TraceReader::TraceReader(std::filesystem::path path, std::ifstream file, std::uint64_t size)
    : path_(std::move(path)), file_(std::move(file)), size_(size), numbers_({}) {}

bool TraceReader::read(std::size_t bytes, std::vector<std::uint8_t>& out) {
  if (size_ - offset_ < bytes) return false;
  out.resize(bytes);
  file_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(bytes));
  if (file_.gcount() != static_cast<std::streamsize>(bytes)) return false;
  offset_ += bytes;
  return true;
}

Error TraceReader::damaged(const std::string& what) const {
  return corrupt(concat(path_.string(), ": ", what, " at byte ", chunk_offset_));
}

Result<void> TraceReader::read_header() {
  const std::string no_trace = concat(path_.string(), " is not a trace of selections");
  if (size_ < kMagic.size() || !read(kMagic.size(), chunk_) ||
      !std::equal(kMagic.begin(), kMagic.end(), chunk_.begin()))
    return invalid_argument(no_trace);
  if (!read(kFileHeaderBytes - kMagic.size(), chunk_)) return damaged("the header is cut off");
  const std::uint32_t version = load_u32(chunk_.data());
  if (version != kVersion)
    return invalid_argument(
        concat(path_.string(), " is a trace of version ", version, "; this program reads version ", kVersion));
  const std::uint32_t payload_bytes = load_u32(&chunk_[4]);
  const std::uint32_t checksum = load_u32(&chunk_[8]);
  const std::uint32_t crc = crc32(std::span<const std::uint8_t>(chunk_).first(8));
  if (payload_bytes > kMostHeaderPayload) return damaged("the header is damaged");
  if (!read(payload_bytes, chunk_)) return damaged("the header is cut off");
  if (crc32(chunk_, crc) != checksum) return damaged("the header is damaged");

  NumberReader numbers(chunk_);
  const auto name = [&](std::string& out) {
    const auto length = numbers.number();
    if (!length || *length > kMostNameBytes || *length > numbers.left()) return false;
    const auto bytes = numbers.bytes(*length);
    out.assign(bytes.begin(), bytes.end());
    return true;
  };
  const auto layers = numbers.number();
  const auto hot_ring = numbers.number();
  if (!layers || *layers < 1 || *layers > kMostLayers || !hot_ring ||
      *hot_ring > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()) || !name(header_.model) ||
      !name(header_.algorithm) || numbers.left() > 0)
    return damaged("the header is damaged");
  header_.layers = static_cast<std::int32_t>(*layers);
  header_.hot_ring = static_cast<std::int32_t>(*hot_ring);
  return {};
}

Result<std::optional<SelectionRecord>> TraceReader::next() {
  if (failure_) return *failure_;
  if (records_left_ == 0) {
    if (offset_ == size_) return std::optional<SelectionRecord>();
    if (auto read = read_chunk(); !read) {
      failure_ = read.error();
      return *failure_;
    }
  }
  auto record = read_record();
  if (!record) {
    failure_ = record.error();
    return *failure_;
  }
  --records_left_;
  return std::optional<SelectionRecord>(record.value());
}

Result<void> TraceReader::read_chunk() {
  chunk_offset_ = offset_;
  if (!read(kChunkHeaderBytes, chunk_)) return damaged("the file is cut off: it ends inside the chunk that begins");
  const std::uint32_t payload_bytes = load_u32(chunk_.data());
  const std::uint32_t records = load_u32(&chunk_[4]);
  const std::uint32_t checksum = load_u32(&chunk_[8]);
  const std::uint32_t crc = crc32(std::span<const std::uint8_t>(chunk_).first(8));
  if (payload_bytes == 0 || payload_bytes > kMostChunkBytes || records == 0)
    return damaged("the file is damaged in the chunk that begins");
  if (!read(payload_bytes, chunk_)) return damaged("the file is cut off: it ends inside the chunk that begins");
  if (crc32(chunk_, crc) != checksum) return damaged("the file is damaged in the chunk that begins");
  numbers_ = NumberReader(chunk_);
  records_left_ = records;
  last_step_ = 0;
  return {};
}

Result<SelectionRecord> TraceReader::read_record() {
  const auto invalid = [this] { return damaged("a record is not valid, in the chunk that begins"); };
  const auto step = numbers_.number();
  const auto flags = numbers_.number();
  const auto sequence = numbers_.number();
  const auto layer = numbers_.number();
  const auto position = numbers_.number();
  if (!step || !flags || !sequence || !layer || !position) return invalid();
  const std::uint64_t block_size = *flags >> kBlockSizeShift;
  if (*step > std::numeric_limits<std::uint64_t>::max() - last_step_ || block_size > kMostBlockSize ||
      *layer >= static_cast<std::uint64_t>(header_.layers) || *position > static_cast<std::uint64_t>(kMostPosition))
    return invalid();

  SelectionRecord record;
  last_step_ += *step;
  record.step = last_step_;
  record.sequence = SequenceId{*sequence};
  record.layer = LayerId{static_cast<std::int32_t>(*layer)};
  record.position = static_cast<std::int64_t>(*position);
  record.block_tokens = 1 << block_size;
  record.prefill = (*flags & kPrefillFlag) != 0;
  record.everything = (*flags & kEverythingFlag) != 0;
  if (!record.everything) {
    const std::int64_t last =
        std::min<std::int64_t>(record.position / record.block_tokens, std::numeric_limits<std::int32_t>::max());
    const auto count = numbers_.number();
    if (!count || !numbers_.blocks(*count, static_cast<std::int32_t>(last), blocks_)) return invalid();
    record.blocks = blocks_;
  }
  if (records_left_ == 1 && numbers_.left() > 0) return invalid();
  return record;
}

}  // namespace hotset::sparse
