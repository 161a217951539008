// Memory of a device and typed arrays in it. Move-only owners; the backend that made them outlives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace hotset::kernels {

class Memory {
 public:
  virtual ~Memory() = default;
  [[nodiscard]] virtual void* data() const = 0;  // the device's address; aligned to 256 bytes
};

// `count` elements in a device's memory; the host may read them only where the backend's memory is the host's.
template <class T>
class Array {
 public:
  Array() = default;
  Array(std::unique_ptr<Memory> memory, std::int64_t count) : memory_(std::move(memory)), count_(count) {}
  [[nodiscard]] T* data() const { return count_ == 0 ? nullptr : static_cast<T*>(memory_->data()); }
  [[nodiscard]] std::int64_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }

 private:
  std::unique_ptr<Memory> memory_;
  std::int64_t count_ = 0;
};

}  // namespace hotset::kernels
