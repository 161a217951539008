#include "api/default_model.h"

#include <vector>

#include "core/concat.h"

namespace hotset::api {
namespace {

constexpr const char* kFileName = "SmolLM2-135M-Instruct.Q4_1.gguf";  // what ./run fetches

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

Result<std::string> find_default_model(const Environment& environment, const std::filesystem::path& working_folder,
                                       const std::filesystem::path& binary_folder) {
  if (const auto given = environment("HOTSET_DEFAULT_MODEL"); given && !given->empty()) {
    std::error_code ignored;
    if (std::filesystem::exists(*given, ignored)) return *given;
    return Error{ErrorCode::kNotFound, "HOTSET_DEFAULT_MODEL names a file that does not exist.", "--model"};
  }
  std::vector<std::filesystem::path> folders = {working_folder / ".cache" / "models"};
  // The binary is built in build/<preset>/ of the repository.
  for (auto folder = binary_folder; folder.has_relative_path(); folder = folder.parent_path()) {
    folders.push_back(folder / ".cache" / "models");
  }
  if (const auto cache = environment("XDG_CACHE_HOME"); cache && !cache->empty()) {
    folders.push_back(std::filesystem::path(*cache) / "hotset" / "models");
  } else if (const auto home = environment("HOME"); home && !home->empty()) {
    folders.push_back(std::filesystem::path(*home) / ".cache" / "hotset" / "models");
  }
  for (const auto& folder : folders) {
    if (is_file(folder / kFileName)) return (folder / kFileName).string();
  }
  return Error{ErrorCode::kNotFound,
               concat("No --model was given and the default model (", kFileName,
                      ") is not there: start with './run serve', which fetches it, or give --model PATH."),
               "--model"};
}

}  // namespace hotset::api
