// The server's version, set by the build.
#pragma once

namespace hotset::api {

inline constexpr const char* kVersion = HOTSET_VERSION;

}  // namespace hotset::api
