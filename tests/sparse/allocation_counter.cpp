#include "tests/sparse/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace hotset {
std::atomic<std::int64_t> allocations = 0;
}  // namespace hotset

void* operator new(std::size_t bytes) {
  ++hotset::allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
