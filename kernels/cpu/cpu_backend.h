// The CPU backend: the embedded default, and the oracle of every other backend.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "kernels/backend.h"

namespace hotset::kernels {

enum class CpuIsa { kScalar, kAvx2, kAvx512, kAvx512Vnni };

// The best instruction set that this processor (and operating system) has.
[[nodiscard]] CpuIsa detect_cpu_isa();

// `threads` >= 1, the caller's included. `isa`: for tests and measurements, at most what detect_cpu_isa() says; all
// give the same bits.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<CpuIsa> isa = std::nullopt);

}  // namespace hotset::kernels
