// Where the default model lies when --model is not given.
#pragma once

#include <filesystem>
#include <string>

#include "api/options.h"
#include "core/result.h"

namespace hotset::api {

// Path of the default model: $HOTSET_DEFAULT_MODEL, else .cache/models in `working_folder` or in a folder above
// `binary_folder`, else $XDG_CACHE_HOME/hotset/models (~/.cache without it). The error says how to get it.
[[nodiscard]] Result<std::string> find_default_model(const Environment& environment,
                                                     const std::filesystem::path& working_folder,
                                                     const std::filesystem::path& binary_folder);

}  // namespace hotset::api
