// Counts the allocations of the test program that links allocation_counter.cpp, which replaces operator new.
#pragma once

#include <atomic>
#include <cstdint>

namespace hotset {

extern std::atomic<std::int64_t> allocations;

}  // namespace hotset
