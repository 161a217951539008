#include "model/index_basis_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/concat.h"
#include "model/printable.h"
#include "model/safetensors_reader.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;

// Float32 rounding leaves 1e-7; anything near this bound was not made by an eigensolver.
constexpr double kOrthonormalTolerance = 1e-3;

std::string tensor_name(std::int32_t layer) { return concat("layers.", layer, ".index_basis"); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const auto dimension : shape) out += concat(out.size() > 1 ? ", " : "", dimension);
  return out + "]";
}

// The rank of a tensor, once its shape and type are what the model needs.
Result<std::int32_t> rank_of(const SafetensorsTensor& tensor, const KvGeometry& geometry) {
  if (tensor.dtype != "F32") return invalid_argument("is not of type F32");
  const auto& shape = tensor.shape;
  if (shape.size() != 3 || shape[0] != geometry.kv_heads || shape[1] != geometry.key_dim) {
    return invalid_argument(concat("has shape ", shape_text(shape), " where the model asks for [", geometry.kv_heads,
                                   ", ", geometry.key_dim, ", rank]"));
  }
  if (auto ok = sparse::check_index_rank(shape[2], geometry.key_dim, "its rank"); !ok) {
    return invalid_argument(concat("can't be used: ", ok.error().message));
  }
  return static_cast<std::int32_t>(shape[2]);
}

// `u`: [key_dim, rank] of one head.
Result<void> check_directions(std::span<const float> u, std::int32_t rank) {
  for (const float number : u) {
    if (!std::isfinite(number)) return invalid_argument("holds a number that is not finite");
  }
  const auto columns = static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < columns; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double product = 0;
      for (std::size_t at = 0; at < u.size(); at += columns) product += static_cast<double>(u[at + i]) * u[at + j];
      if (std::abs(product - (i == j ? 1.0 : 0.0)) > kOrthonormalTolerance) {
        return invalid_argument("holds directions that are not orthogonal and of length 1");
      }
    }
  }
  return {};
}

Result<std::vector<float>> read_layer(const SafetensorsTensor& tensor, const KvGeometry& geometry, std::int32_t rank) {
  std::vector<float> u(tensor.data.size() / sizeof(float));
  std::memcpy(u.data(), tensor.data.data(), tensor.data.size());  // the file's data need not be aligned
  const auto head_size = static_cast<std::size_t>(geometry.key_dim) * rank;
  for (std::size_t at = 0; at < u.size(); at += head_size) {
    if (auto ok = check_directions(std::span(u).subspan(at, head_size), rank); !ok) return ok.error();
  }
  return u;
}

Result<sparse::IndexBasis> parse(const SafetensorsFile& file, const KvGeometry& geometry) {
  sparse::IndexBasis basis{.layers = geometry.layers, .kv_heads = geometry.kv_heads, .key_dim = geometry.key_dim};
  const auto about = [](const std::string& name, const Error& error) {
    return Error{error.code, concat("tensor ", name, " ", error.message), {}};
  };
  std::set<std::string, std::less<>> unused;
  for (const auto& entry : file.tensors) unused.insert(entry.first);
  for (std::int32_t layer = 0; layer < geometry.layers; ++layer) {
    const auto name = tensor_name(layer);
    unused.erase(name);
    const auto it = file.tensors.find(name);
    if (it == file.tensors.end())
      return invalid_argument(concat("lacks the tensor ", name, " that the model asks for"));
    const auto rank = rank_of(it->second, geometry);
    if (!rank) return about(name, rank.error());
    if (layer == 0) basis.rank = rank.value();
    if (rank.value() != basis.rank) return invalid_argument(concat("tensor ", name, " has another rank than layer 0"));
    auto u = read_layer(it->second, geometry, basis.rank);
    if (!u) return about(name, u.error());
    basis.u.push_back(std::move(u).value());
  }
  // One tensor more than the model has layers: the file belongs to another model.
  if (!unused.empty()) {
    return invalid_argument(concat("tensor ", printable(*unused.begin()), " belongs to no layer of the model"));
  }
  hash_index_basis(basis);
  return basis;
}

std::string header_of(const sparse::IndexBasis& basis) {
  nlohmann::ordered_json header;
  std::uint64_t begin = 0;
  for (std::int32_t layer = 0; layer < basis.layers; ++layer) {
    const std::uint64_t end = begin + basis.of(layer).size_bytes();
    header[tensor_name(layer)] = {
        {"dtype", "F32"}, {"shape", {basis.kv_heads, basis.key_dim, basis.rank}}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // as the reference library does: the data starts at a multiple of 8
  return text;
}

Error write_error(const fs::path& path, int reason) {
  return Error{
      ErrorCode::kUnavailable, concat("can't write ", path.string(), ": ", std::system_category().message(reason)), {}};
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string_view bytes_of(std::span<const float> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

// 0 or the reason of the system.
int write_contents(int descriptor, const sparse::IndexBasis& basis) {
  const auto header = header_of(basis);
  const std::uint64_t header_bytes = header.size();
  bool good = write_all(descriptor, {reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes}) &&
              write_all(descriptor, header);
  for (std::int32_t layer = 0; layer < basis.layers && good; ++layer) {
    good = write_all(descriptor, bytes_of(basis.of(layer)));
  }
  return good && ::fsync(descriptor) == 0 ? 0 : errno;
}

}  // namespace

Result<sparse::IndexBasis> read_index_basis(const fs::path& path, const KvGeometry& geometry) {
  auto file = read_safetensors(path);
  if (!file) return file.error();
  auto basis = parse(file.value(), geometry);
  if (!basis) {
    return Error{basis.error().code, concat("index basis ", path.string(), ": ", basis.error().message), {}};
  }
  return basis;
}

Result<void> write_index_basis(const fs::path& path, const sparse::IndexBasis& basis) {
  // The rename would put a file in the place of a device, a pipe or a link.
  struct stat there{};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Error{ErrorCode::kUnavailable, concat("can't write ", path.string(), ": it is not a regular file"), {}};
  }
  // In the same folder, so that the rename stays inside one file system.
  std::string temporary = path.string() + ".XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return write_error(path, errno);
  int reason = ::fchmod(descriptor, 0644) == 0 ? write_contents(descriptor, basis) : errno;  // mkostemp gives 0600
  if (::close(descriptor) != 0 && reason == 0) reason = errno;
  if (reason == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) reason = errno;
  if (reason != 0) {
    ::unlink(temporary.c_str());
    return write_error(path, reason);
  }
  return {};
}

}  // namespace hotset::model
