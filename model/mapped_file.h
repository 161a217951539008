// A file mapped read-only. Immutable, safe from any thread. A file that shrinks while it is mapped ends the process on
// the next access (SIGBUS): replace checkpoints by renaming, not by truncating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/result.h"

namespace hotset::model {

class MappedFile {
 public:
  // Errors: kNotFound when there is no such file, kInvalidArgument for anything that is no readable regular file.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A whole text file of at most `limit` bytes (config.json and the like).
Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t limit);

}  // namespace hotset::model
