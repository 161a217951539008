// Memory for panels and scratch: aligned to a cache line, grows, never shrinks, contents lost on growth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace hotset::kernels {

template <class T>
class AlignedBuffer {
 public:
  // The pointer stays valid until the next larger reserve(). Throws std::bad_alloc.
  T* reserve(std::int64_t count) {
    if (count > capacity_) {
      capacity_ = 0;
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), kAlignment)));
      capacity_ = count;
    }
    return data_.get();
  }
  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t bytes() const { return capacity_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<T, Free> data_;
  std::int64_t capacity_ = 0;
};

}  // namespace hotset::kernels
