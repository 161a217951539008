#pragma once

#include <utility>

#include "core/check.h"
#include "core/result.h"

namespace hotset::testing {

// For what a test takes for granted.
template <class T>
T require(Result<T> result) {
  HS_CHECK(result.ok(), result.ok() ? "" : result.error().message.c_str());
  return std::move(result).value();
}

}  // namespace hotset::testing
