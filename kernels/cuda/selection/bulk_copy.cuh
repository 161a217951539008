// Bulk copies from global to shared memory, counted by barriers in shared memory (Hopper), as thin names over PTX.
#pragma once

#include <cstdint>

namespace hotset::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// One arrival a phase: that of expect_bytes(). Followed by a barrier of all threads that wait on it.
__device__ __forceinline__ void init_copy_barrier([[maybe_unused]] std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// One thread: the barrier's next phase ends when so many bytes have come. Some may come before.
__device__ __forceinline__ void expect_bytes([[maybe_unused]] std::uint64_t* barrier,
                                             [[maybe_unused]] std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

// One thread starts the copy of `bytes` (a multiple of 16, both ends on 16 bytes) and the barrier's next phase.
__device__ __forceinline__ void start_bulk_copy([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                                                [[maybe_unused]] std::uint32_t bytes,
                                                [[maybe_unused]] std::uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  expect_bytes(barrier, bytes);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}

// Until the phase of this parity is over: its bytes are there.
__device__ __forceinline__ void wait_bulk_copy([[maybe_unused]] std::uint64_t* barrier,
                                               [[maybe_unused]] std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nAGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "AGAIN_%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace hotset::kernels::cuda
