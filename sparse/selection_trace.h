// A file of selections, one record for each query row and layer: `hotset serve --trace-selections` writes it, `hotset
// inspect trace` and `hotset replay` read it. The format is in docs/trace_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "sparse/selection_code.h"
#include "sparse/selection_observer.h"

namespace hotset::sparse {

struct TraceHeader {
  std::string model;          // name in the API; at most 1,024 bytes are kept, of both names
  std::string algorithm;      // the server's; a request may have had another one
  std::int32_t layers = 0;    // every record's layer is below it
  std::int32_t hot_ring = 0;  // R, of hot sequences; 0: not known

  bool operator==(const TraceHeader&) const = default;
};

// Records go to the file in chunks of up to 256 KiB or 4,096 records, the last one at destruction: a process that is
// killed loses that much. One chunk is held in memory. Thread: one at a time.
class TraceWriter final : public SelectionObserver {
 public:
  // Starts a new trace; one that is there is replaced. kInvalidArgument (naming --trace-selections): the path can't be
  // written, another server writes it, or it is something else than a trace, which is never overwritten.
  static Result<std::unique_ptr<TraceWriter>> create(const std::filesystem::path& path, const TraceHeader& header);
  ~TraceWriter() override;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Never fails towards the caller: a write error (disk full), or a record that breaks the contract, is logged once and
  // ends the recording; what was written before stays readable. Blocks no longer than a write of one chunk does.
  void observe(const SelectionRecord& record) override;
  // Hands the records that are still in memory to the file.
  void flush();

  [[nodiscard]] bool recording() const { return file_ >= 0; }

 private:
  TraceWriter(int file, std::filesystem::path path, std::int32_t layers);
  [[nodiscard]] bool append(const SelectionRecord& record);
  void stop(const std::string& reason);

  int file_;  // -1: stopped
  std::filesystem::path path_;
  std::int32_t layers_;
  std::uint64_t written_ = 0;         // bytes of whole chunks and the header
  std::vector<std::uint8_t> buffer_;  // the chunk's header, then its records
  std::uint32_t records_ = 0;         // in buffer_
  std::uint64_t last_step_ = 0;       // of the record before, in this chunk
};

// Reads a trace from its beginning. The file may be anything: lengths are bounded by what is there, every record is
// checked. Thread: one at a time.
class TraceReader {
 public:
  // kNotFound: no such file. kInvalidArgument: not a file, not a trace, or of another version. kCorrupt.
  static Result<std::unique_ptr<TraceReader>> open(const std::filesystem::path& path);

  [[nodiscard]] const TraceHeader& header() const { return header_; }
  // The next record, nothing at the end; its blocks are valid until the next call. kCorrupt, naming the offset of the
  // chunk, where the file is damaged or cut off: all records before it were given, none follows. A file that was cut
  // between two chunks is only a shorter trace.
  Result<std::optional<SelectionRecord>> next();

 private:
  TraceReader(std::filesystem::path path, std::ifstream file, std::uint64_t size);
  Result<void> read_header();
  Result<void> read_chunk();
  Result<SelectionRecord> read_record();
  // False: the file ends before.
  [[nodiscard]] bool read(std::size_t bytes, std::vector<std::uint8_t>& out);
  [[nodiscard]] Error damaged(const std::string& what) const;

  std::filesystem::path path_;
  std::ifstream file_;
  std::uint64_t size_;        // of the file, when it was opened
  std::uint64_t offset_ = 0;  // of the next byte to read
  TraceHeader header_;

  std::uint64_t chunk_offset_ = 0;
  std::vector<std::uint8_t> chunk_;  // a whole, checked payload
  NumberReader numbers_;             // what is left of it
  std::uint32_t records_left_ = 0;   // in it
  std::uint64_t last_step_ = 0;
  std::optional<Error> failure_;
  std::vector<std::int32_t> blocks_;
};

}  // namespace hotset::sparse
