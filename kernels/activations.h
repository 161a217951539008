// Rows that matrix products read, in the element type that the backend computes with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/check.h"
#include "kernels/array.h"

namespace hotset::kernels {

enum class ElementType : std::uint8_t { kF32, kBF16 };
[[nodiscard]] constexpr std::int64_t element_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

// A pointer with its element type; float pointers convert.
class Activations {
 public:
  Activations() = default;
  Activations(const float* data) : data_(data) {}  // NOLINT(google-explicit-constructor)
  Activations(const void* data, ElementType type) : data_(data), type_(type) {}

  [[nodiscard]] const void* data() const { return data_; }
  [[nodiscard]] ElementType type() const { return type_; }
  [[nodiscard]] const float* f32() const {
    HS_CHECK(type_ == ElementType::kF32, "the activations are float32");
    return static_cast<const float*>(data_);
  }

 private:
  const void* data_ = nullptr;
  ElementType type_ = ElementType::kF32;
};

class ActivationsOut {
 public:
  ActivationsOut() = default;
  ActivationsOut(float* data) : data_(data) {}  // NOLINT(google-explicit-constructor)
  ActivationsOut(void* data, ElementType type) : data_(data), type_(type) {}
  operator Activations() const { return {data_, type_}; }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] ElementType type() const { return type_; }
  [[nodiscard]] float* f32() const {
    HS_CHECK(type_ == ElementType::kF32, "the activations are float32");
    return static_cast<float*>(data_);
  }
  // That many elements further on.
  [[nodiscard]] ActivationsOut from(std::int64_t elements) const {
    return {static_cast<std::byte*>(data_) + elements * element_bytes(type_), type_};
  }

 private:
  void* data_ = nullptr;
  ElementType type_ = ElementType::kF32;
};

class ActivationArray {
 public:
  ActivationArray() = default;
  ActivationArray(std::unique_ptr<Memory> memory, ElementType type) : memory_(std::move(memory)), type_(type) {}
  [[nodiscard]] bool empty() const { return memory_ == nullptr; }
  [[nodiscard]] ActivationsOut get() const { return {memory_->data(), type_}; }

 private:
  std::unique_ptr<Memory> memory_;
  ElementType type_ = ElementType::kF32;
};

}  // namespace hotset::kernels
