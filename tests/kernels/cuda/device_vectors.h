// Vectors copied to the device and back.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

template <class T>
DeviceBuffer<T> to_device(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(std::max<std::size_t>(values.size(), 1));
  if (!values.empty()) buffer.upload(values.data(), values.size());
  return buffer;
}

// The first `count`. Waits for the device.
template <class T>
std::vector<T> to_host(const DeviceBuffer<T>& buffer, std::size_t count) {
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<T> values(count);
  if (count > 0) buffer.download(values.data(), count);
  return values;
}
template <class T>
std::vector<T> to_host(const DeviceBuffer<T>& buffer) {
  return to_host(buffer, buffer.size());
}

}  // namespace hotset::kernels::cuda
