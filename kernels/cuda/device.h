// The GPU as code outside kernels/cuda sees it: memory, streams, events, captured graphs. No CUDA headers. A failed
// call throws CudaError (runtime.h), a std::runtime_error: a broken environment; no memory of the device:
// std::bad_alloc. Threads: one at a time for everything of a Device, but for events, which any thread may ask.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/result.h"
#include "kernels/array.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int capability_major = 0;
  int capability_minor = 0;
  std::int64_t total_bytes = 0;
};

// The first GPU that CUDA shows to this process. kUnavailable in words when there is none that can be used: no driver,
// no device, or a compute capability that this build has no code for. Never throws.
[[nodiscard]] Result<DeviceInfo> find_gpu();
// `gpu`, or kUnavailable in words where code for `architectures` (800: 8.0) does not run on it: code of one major
// number runs on the minor numbers from its own on; kernels are built without PTX, so it runs on no other.
[[nodiscard]] Result<DeviceInfo> check_has_code(DeviceInfo gpu, std::span<const int> architectures);
[[nodiscard]] std::int64_t free_device_bytes();

// Memory of the GPU, zeroed, from larger pieces: many small allocations cost little. The first piece is small, the next
// ones are as large as all before, up to 64 MiB. A piece goes back when nothing of it is in use any more.
class DeviceArena {
 public:
  [[nodiscard]] std::unique_ptr<Memory> allocate(std::int64_t bytes);

 private:
  struct Piece;
  struct Open {  // a piece with room behind `used`
    std::weak_ptr<Piece> piece;
    std::int64_t used = 0;
  };
  std::vector<Open> open_;
  std::int64_t made_ = 0;  // bytes of pieces for several allocations
};

// Memory of the GPU that grows, in steps of at most an eighth. What it held before goes away with its contents, once
// the device has done what was queued: captured graphs that hold its address are void when moves() has changed.
class GrowingMemory {
 public:
  // At least `bytes`; 0: as much as there is.
  [[nodiscard]] void* reserve(std::int64_t bytes);
  [[nodiscard]] static std::int64_t size_for(std::int64_t bytes);  // what reserve() takes from the device
  // How often memory of any of them has moved, in this process.
  [[nodiscard]] static std::uint64_t moves();

 private:
  std::unique_ptr<Memory> memory_;
  std::int64_t bytes_ = 0;
};

// What arenas and growing memory of this process hold.
[[nodiscard]] std::int64_t held_device_bytes();

// Pinned host memory; the device reads and writes it in place at the same address.
[[nodiscard]] std::unique_ptr<Memory> allocate_pinned(std::int64_t bytes);

// Pinned memory that is handed out piece by piece and taken back all at once.
class PinnedBlock {
 public:
  // `count` values, not initialised, valid until clear().
  template <class T>
  [[nodiscard]] std::span<T> take(std::int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    return {static_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T)))), static_cast<std::size_t>(count)};
  }
  template <class T>
  [[nodiscard]] T* keep(std::span<const T> values) {
    const std::span<T> kept = take<T>(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), kept.begin());
    return kept.data();
  }
  // The caller has waited for what reads the memory.
  void clear();

 private:
  struct Piece {
    std::unique_ptr<Memory> memory;
    std::int64_t bytes = 0;
  };
  void* take_bytes(std::int64_t bytes);
  std::vector<Piece> pieces_;
  std::size_t piece_ = 0;
  std::int64_t used_ = 0;
};

class DeviceStream {
 public:
  DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream();
  [[nodiscard]] Stream get() const { return stream_; }

  // In stream order; returns when it is queued. Host memory must be pinned and stay as it is until then.
  void copy(const void* source, void* target, std::int64_t bytes) const;
  // `rows` rows of `width` bytes.
  void copy_rows(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                 std::int64_t width, std::int64_t rows) const;
  void fill_bytes(void* target, int byte, std::int64_t bytes) const;
  void synchronize() const;

 private:
  Stream stream_ = nullptr;
};

class DeviceEvent {
 public:
  explicit DeviceEvent(bool timing = false);
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;
  ~DeviceEvent();
  void record(const DeviceStream& stream);
  void make_wait(const DeviceStream& stream) const;  // work queued there from now on comes after the last record()
  void synchronize() const;                          // keeps a processor busy
  [[nodiscard]] bool reached() const;                // what the last record() stands behind is done
  [[nodiscard]] double milliseconds_since(const DeviceEvent& earlier) const;  // both with timing, both reached

 private:
  void* event_ = nullptr;
};

// Launches captured once and replayed as one.
class CapturedGraph {
 public:
  CapturedGraph() = default;
  // `enqueue` launches on the stream and does nothing else to the device.
  CapturedGraph(const DeviceStream& stream, const std::function<void()>& enqueue);
  CapturedGraph(CapturedGraph&& other) noexcept;
  CapturedGraph& operator=(CapturedGraph&& other) noexcept;
  ~CapturedGraph();
  [[nodiscard]] bool empty() const { return executable_ == nullptr; }
  void launch(const DeviceStream& stream) const;

 private:
  void* executable_ = nullptr;
};

}  // namespace hotset::kernels::cuda
