// A folder of its own for one test, removed with everything in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace hotset::model {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hotset-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // A new file, so that one which is still mapped keeps its bytes.
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const auto file = path_ / name;
    std::filesystem::remove(file);
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    EXPECT_TRUE(out.good());
    return file;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::filesystem::path fixture(const std::string& name) { return std::filesystem::path(HOTSET_FIXTURES) / name; }

// A fixture's weights and configuration, in a folder that may be changed.
inline void copy_fixture(const std::string& name, const TemporaryFolder& folder) {
  for (const auto* file : {"config.json", "generation_config.json", "model.safetensors"}) {
    std::filesystem::copy_file(fixture(name) / file, folder.path() / file,
                               std::filesystem::copy_options::overwrite_existing);
  }
}

}  // namespace hotset::model
