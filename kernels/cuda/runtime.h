// Owners of what the CUDA runtime hands out, and the check of its answers. For .cu files and GPU tests and benchmarks:
// nothing outside kernels/cuda includes CUDA's headers. A failed call throws CudaError: a broken environment.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/check.h"

namespace hotset::kernels::cuda {

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws with the call's text and CUDA's own words.
void check_cuda(cudaError_t status, const char* call, const char* file, int line);
#define HOTSET_CUDA_CHECK(call) ::hotset::kernels::cuda::check_cuda((call), #call, __FILE__, __LINE__)

// That so much host memory could not be pinned, and the limit that is the likely reason.
[[nodiscard]] std::string not_pinned(std::int64_t bytes);

// After a launch: a bad configuration is an error here, not at some later call.
#define HOTSET_CUDA_CHECK_LAUNCH() HOTSET_CUDA_CHECK(cudaGetLastError())

// Whether this process can use a GPU of compute capability 8.0 or more; never throws.
[[nodiscard]] bool gpu_available();

// Device memory of `count` elements; freed by the destructor. Moves leave it empty.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    if (count > 0) HOTSET_CUDA_CHECK(cudaMalloc(&data_, count * sizeof(T)));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T); }

  // For set-up, tests and benchmarks; `count` elements from the start. Done when they return, also for streams that
  // don't wait for the default one: neither cudaMemset nor a small cudaMemcpy promises that by itself.
  void upload(const T* source, std::size_t count) {
    HS_CHECK(count <= count_, "the buffer holds what is uploaded");
    HOTSET_CUDA_CHECK(cudaMemcpy(data_, source, count * sizeof(T), cudaMemcpyHostToDevice));
    HOTSET_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  void download(T* target, std::size_t count) const {
    HS_CHECK(count <= count_, "the buffer holds what is downloaded");
    HOTSET_CUDA_CHECK(cudaMemcpy(target, data_, count * sizeof(T), cudaMemcpyDeviceToHost));
  }
  void fill_bytes(int byte) {
    HOTSET_CUDA_CHECK(cudaMemset(data_, byte, bytes()));
    HOTSET_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }

 private:
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

class OwnedStream {
 public:
  OwnedStream() { HOTSET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void synchronize() const { HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  // `timing`: it can be asked for elapsed time.
  explicit Event(bool timing = false) {
    HOTSET_CUDA_CHECK(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  [[nodiscard]] cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { HOTSET_CUDA_CHECK(cudaEventRecord(event_, stream)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Host memory that the device reads and writes in place: mmap, huge-page advised, then registered, which pins 20 times
// faster than cudaHostAlloc. Zeroed. `device()` is the device's address of it.
class MappedHostMemory {
 public:
  explicit MappedHostMemory(std::size_t bytes);
  MappedHostMemory(const MappedHostMemory&) = delete;
  MappedHostMemory& operator=(const MappedHostMemory&) = delete;
  ~MappedHostMemory();
  [[nodiscard]] std::byte* host() const { return host_; }
  [[nodiscard]] std::byte* device() const { return device_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hotset::kernels::cuda
