#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/concat.h"

namespace hotset::model {

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its other end.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const bool absent = errno == ENOENT || errno == ENOTDIR;
    return Error{absent ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
                 concat("cannot open ", path.string(), ": ", std::strerror(errno)),
                 {}};
  }
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return invalid_argument(concat(path.string(), " is not a regular file"));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    return invalid_argument(concat("cannot map ", path.string(), ": ", std::strerror(map_error)));
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t limit) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  const auto bytes = file.value()->bytes();
  if (bytes.size() > limit) return corrupt(concat(path.string(), " is larger than ", limit, " bytes"));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace hotset::model
