#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <utility>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kLeastPieceBytes = std::int64_t{2} << 20;  // the driver's own unit
constexpr std::int64_t kMostPieceBytes = std::int64_t{64} << 20;
constexpr std::int64_t kPinnedPieceBytes = std::int64_t{1} << 20;

std::atomic<std::int64_t> held_bytes{0};
std::atomic<std::uint64_t> growing_moves{0};

void* device_malloc(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw std::bad_alloc();
  }
  HOTSET_CUDA_CHECK(status);
  HOTSET_CUDA_CHECK(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  HOTSET_CUDA_CHECK(cudaStreamSynchronize(nullptr));  // streams of ours don't wait for the default one
  return data;
}

class OwnMemory final : public Memory {
 public:
  explicit OwnMemory(std::int64_t bytes) : data_(device_malloc(bytes)), bytes_(bytes) { held_bytes += bytes; }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  ~OwnMemory() override {
    cudaFree(data_);
    held_bytes -= bytes_;
  }
  void* data() const override { return data_; }

 private:
  void* data_;
  std::int64_t bytes_;
};

class PinnedMemory final : public Memory {
 public:
  explicit PinnedMemory(std::int64_t bytes) {
    const cudaError_t status = cudaHostAlloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)),
                                             cudaHostAllocMapped | cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw CudaError(not_pinned(bytes));
    }
    HOTSET_CUDA_CHECK(status);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() override { cudaFreeHost(data_); }
  void* data() const override { return data_; }

 private:
  void* data_ = nullptr;
};

cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

Result<DeviceInfo> find_gpu() {
  int count = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count == 0) status = cudaErrorNoDevice;
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, 0);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return Error{ErrorCode::kUnavailable, concat("CUDA finds no GPU here (", cudaGetErrorString(status), ")"), {}};
  }
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};  // nvcc's: what this file is compiled for
  return check_has_code({.name = properties.name,
                         .capability_major = properties.major,
                         .capability_minor = properties.minor,
                         .total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem)},
                        kArchitectures);
}

Result<DeviceInfo> check_has_code(DeviceInfo gpu, std::span<const int> architectures) {
  std::string built;
  for (const int architecture : architectures) {
    const int major = architecture / 100;
    const int minor = architecture % 100 / 10;
    if (gpu.capability_major == major && gpu.capability_minor >= minor) return gpu;
    built += concat(built.empty() ? "" : " and ", major, ".", minor);
  }
  return Error{ErrorCode::kUnavailable,
               concat("the GPU (", gpu.name, ") has compute capability ", gpu.capability_major, ".",
                      gpu.capability_minor, ", and this build has code for ", built),
               {}};
}

std::int64_t free_device_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  HOTSET_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(free);
}

struct DeviceArena::Piece {
  explicit Piece(std::int64_t size) : memory(size), bytes(size) {}
  OwnMemory memory;
  std::int64_t bytes;
};

std::unique_ptr<Memory> DeviceArena::allocate(std::int64_t bytes) {
  class Part final : public Memory {
   public:
    Part(std::shared_ptr<Piece> piece, std::int64_t offset)
        : piece_(std::move(piece)), data_(static_cast<std::byte*>(piece_->memory.data()) + offset) {}
    void* data() const override { return data_; }

   private:
    std::shared_ptr<Piece> piece_;
    std::byte* data_;
  };
  const std::int64_t size = round_up(std::max<std::int64_t>(bytes, 1), kAlignment);
  if (size > kMostPieceBytes / 4) return std::make_unique<OwnMemory>(size);
  std::erase_if(open_, [](const Open& open) { return open.piece.expired(); });
  for (Open& open : open_) {
    std::shared_ptr<Piece> piece = open.piece.lock();
    if (open.used + size > piece->bytes) continue;
    const std::int64_t offset = std::exchange(open.used, open.used + size);
    return std::make_unique<Part>(std::move(piece), offset);
  }
  const std::int64_t piece_bytes = std::max(size, std::clamp(made_, kLeastPieceBytes, kMostPieceBytes));
  auto piece = std::make_shared<Piece>(piece_bytes);
  made_ += piece_bytes;
  open_.push_back({piece, size});
  return std::make_unique<Part>(std::move(piece), 0);
}

std::int64_t GrowingMemory::size_for(std::int64_t bytes) {
  const auto most = static_cast<std::uint64_t>(std::max(bytes, kAlignment));
  return round_up(static_cast<std::int64_t>(most),
                  std::max(kAlignment, static_cast<std::int64_t>(std::bit_floor(most) / 8)));
}

void* GrowingMemory::reserve(std::int64_t bytes) {
  if (bytes > bytes_ || memory_ == nullptr) {
    ++growing_moves;
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());  // steps under way read it
    memory_.reset();                             // first: both need not fit at a time
    bytes_ = 0;
    const std::int64_t size = size_for(bytes);
    memory_ = std::make_unique<OwnMemory>(size);
    bytes_ = size;
  }
  return memory_->data();
}

std::uint64_t GrowingMemory::moves() { return growing_moves; }

std::int64_t held_device_bytes() { return held_bytes; }

std::unique_ptr<Memory> allocate_pinned(std::int64_t bytes) { return std::make_unique<PinnedMemory>(bytes); }

void PinnedBlock::clear() {
  piece_ = 0;
  used_ = 0;
}

void* PinnedBlock::take_bytes(std::int64_t bytes) {
  const std::int64_t size = (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  for (; piece_ < pieces_.size(); ++piece_, used_ = 0) {
    if (used_ + size > pieces_[piece_].bytes) continue;
    std::byte* const data = static_cast<std::byte*>(pieces_[piece_].memory->data()) + used_;
    used_ += size;
    return data;
  }
  const std::int64_t piece = std::max(size, kPinnedPieceBytes);
  pieces_.push_back({allocate_pinned(piece), piece});
  piece_ = pieces_.size() - 1;
  used_ = size;
  return pieces_.back().memory->data();
}

DeviceStream::DeviceStream() {
  cudaStream_t stream = nullptr;
  HOTSET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_ = stream;
}
DeviceStream::~DeviceStream() { cudaStreamDestroy(stream_); }

void DeviceStream::copy(const void* source, void* target, std::int64_t bytes) const {
  if (bytes <= 0) return;
  HOTSET_CUDA_CHECK(cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_));
}

void DeviceStream::copy_rows(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                             std::int64_t width, std::int64_t rows) const {
  if (width <= 0 || rows <= 0) return;
  HOTSET_CUDA_CHECK(cudaMemcpy2DAsync(target, static_cast<std::size_t>(target_stride), source,
                                      static_cast<std::size_t>(source_stride), static_cast<std::size_t>(width),
                                      static_cast<std::size_t>(rows), cudaMemcpyDefault, stream_));
}

void DeviceStream::fill_bytes(void* target, int byte, std::int64_t bytes) const {
  if (bytes <= 0) return;
  HOTSET_CUDA_CHECK(cudaMemsetAsync(target, byte, static_cast<std::size_t>(bytes), stream_));
}

void DeviceStream::synchronize() const { HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

DeviceEvent::DeviceEvent(bool timing) {
  cudaEvent_t event = nullptr;
  HOTSET_CUDA_CHECK(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
  event_ = event;
}
DeviceEvent::DeviceEvent(DeviceEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) cudaEventDestroy(as_event(event_));
}
void DeviceEvent::record(const DeviceStream& stream) {
  HOTSET_CUDA_CHECK(cudaEventRecord(as_event(event_), stream.get()));
}
void DeviceEvent::make_wait(const DeviceStream& stream) const {
  HOTSET_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), as_event(event_), 0));
}
void DeviceEvent::synchronize() const { HOTSET_CUDA_CHECK(cudaEventSynchronize(as_event(event_))); }
bool DeviceEvent::reached() const {
  const cudaError_t status = cudaEventQuery(as_event(event_));
  if (status == cudaErrorNotReady) return false;
  HOTSET_CUDA_CHECK(status);
  return true;
}
double DeviceEvent::milliseconds_since(const DeviceEvent& earlier) const {
  float time = 0;
  HOTSET_CUDA_CHECK(cudaEventElapsedTime(&time, as_event(earlier.event_), as_event(event_)));
  return time;
}

CapturedGraph::CapturedGraph(const DeviceStream& stream, const std::function<void()>& enqueue) {
  HOTSET_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {  // leave the stream usable; the first error is the one to tell
    (void)cudaStreamEndCapture(stream.get(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  HOTSET_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw std::bad_alloc();
  }
  HOTSET_CUDA_CHECK(status);
  executable_ = executable;
}
CapturedGraph::CapturedGraph(CapturedGraph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
CapturedGraph& CapturedGraph::operator=(CapturedGraph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}
CapturedGraph::~CapturedGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}
void CapturedGraph::launch(const DeviceStream& stream) const {
  HOTSET_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream.get()));
}

}  // namespace hotset::kernels::cuda
