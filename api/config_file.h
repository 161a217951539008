// Reads the flat configuration file: `key = value` lines in TOML or INI style.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace hotset::api {

struct ConfigEntry {
  std::string key;  // underscores become dashes
  std::string value;
  int line = 0;
};

// Comments begin with # or ; at the start of a line or after a blank, outside of quotes. Values may stand in "" or ''.
// A section header may only be [serve]; a key stands there once at most. Errors name the line. A byte order mark at the
// start is skipped.
[[nodiscard]] Result<std::vector<ConfigEntry>> parse_config_text(std::string_view text);

}  // namespace hotset::api
