#include <numeric>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

using Runtime = GpuTest;

__global__ void add_one(std::int32_t* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) ++values[i];
}

TEST_F(Runtime, MappedMemoryIsWrittenInPlace) {
  constexpr int kCount = 3'000'000;
  const MappedHostMemory memory(kCount * sizeof(std::int32_t));
  auto* host = reinterpret_cast<std::int32_t*>(memory.host());
  std::iota(host, host + kCount, 7);
  const OwnedStream stream;
  add_one<<<(kCount + 255) / 256, 256, 0, stream.get()>>>(reinterpret_cast<std::int32_t*>(memory.device()), kCount);
  HOTSET_CUDA_CHECK_LAUNCH();
  stream.synchronize();
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(host[i], i + 8);
}

TEST_F(Runtime, BuffersMoveAndCopy) {
  std::vector<float> values(1000), back(1000);
  std::iota(values.begin(), values.end(), 0.5F);
  DeviceBuffer<float> first(1000);
  first.upload(values.data(), values.size());
  const DeviceBuffer<float> second = std::move(first);
  second.download(back.data(), back.size());
  EXPECT_EQ(back, values);
}

TEST_F(Runtime, FailedCallsThrowWithTheirText) {
  try {
    HOTSET_CUDA_CHECK(cudaSetDevice(1 << 20));
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("cudaSetDevice"), std::string::npos);
  }
  (void)cudaGetLastError();
}

}  // namespace
}  // namespace hotset::kernels::cuda
