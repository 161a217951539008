// The table of `hotset serve` options: each is declared once and serves as flag, environment variable and file key.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/config.h"
#include "core/result.h"

namespace hotset::api {

struct ServerOption {
  std::string_view name;   // without dashes in front
  std::string_view group;  // heading in --help
  std::string_view value;  // what stands for the value in --help
  std::string_view help;   // with unit and default
  // Reads the text into the configuration. On failure: what the value must be ("an integer from 1 to 65535").
  std::function<std::optional<std::string>(ServerConfig& config, const std::string& text)> apply;
};

[[nodiscard]] std::span<const ServerOption> server_options();

// Rules between several options; the error names the options.
[[nodiscard]] Result<void> check_server_config(const ServerConfig& config);

}  // namespace hotset::api
