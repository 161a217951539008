// The blocks of a row, and what they tell each other. On Hopper a cluster, which meets in distributed shared memory;
// before it one block. Everything here is called by all threads of all blocks of the row.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace hotset::kernels::cuda::sampling {

using Weight = unsigned long long;  // what atomicAdd takes

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMostBlocks = 8;  // what every device of the kind runs as a cluster
inline constexpr unsigned kAll = 0xffffffffU;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

__device__ __forceinline__ Weight warp_total(Weight value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

__device__ __forceinline__ Weight warp_prefix(Weight value) {  // inclusive
  for (int step = 1; step < 32; step *= 2) {
    const Weight other = __shfl_up_sync(kAll, value, step);
    if (lane_id() >= step) value += other;
  }
  return value;
}

struct Pair {
  Weight a = 0;
  Weight b = 0;
};

struct TeamShared {
  Pair warps[kWarps];
  // Other blocks read one while the next is written: between the reads of one and the writes of the next but one lies
  // a meeting of all blocks.
  Pair told[2];
};

class Team {
 public:
  __device__ explicit Team(TeamShared& shared) : shared_(shared) {
#if __CUDA_ARCH__ >= 900
    rank_ = static_cast<int>(cooperative_groups::this_cluster().block_rank());
    size_ = static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#endif
  }
  [[nodiscard]] __device__ int rank() const { return rank_; }
  [[nodiscard]] __device__ int size() const { return size_; }  // a power of two

  // Of all blocks; orders shared and global memory among them.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }
  template <class T>
  __device__ const T* of_block(T* mine, [[maybe_unused]] int block) const {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(mine, block);
#else
    return mine;
#endif
  }

  // The threads' pairs of a block, folded. fold(x, y) is commutative and associative.
  template <class Fold>
  __device__ Pair fold_block(Pair mine, const Fold& fold) const {
    mine = fold_lanes(mine, 32, fold);
    __syncthreads();  // the last fold's pairs have been read
    if (lane_id() == 0) shared_.warps[warp_id()] = mine;
    __syncthreads();
    return fold_lanes(shared_.warps[lane_id()], 32, fold);
  }
  // What the block in this lane's place (lane % size) told. All threads of a block tell the same.
  __device__ Pair tell(Pair mine) {
    Pair& slot = shared_.told[turn_ ^= 1];
    if (threadIdx.x == 0) slot = mine;
    sync();
    return *of_block(&slot, lane_id() % size_);
  }
  template <class Fold>
  __device__ Pair fold(Pair mine, const Fold& fold) {
    return fold_lanes(tell(fold_block(mine, fold)), size_, fold);
  }

 private:
  template <class Fold>
  __device__ static Pair fold_lanes(Pair mine, int lanes, const Fold& fold) {
    for (int step = lanes / 2; step > 0; step /= 2) {
      mine = fold(mine, Pair{__shfl_xor_sync(kAll, mine.a, step), __shfl_xor_sync(kAll, mine.b, step)});
    }
    return mine;
  }

  TeamShared& shared_;
  int rank_ = 0;
  int size_ = 1;
  int turn_ = 0;
};

struct AddPairs {
  __device__ Pair operator()(const Pair& x, const Pair& y) const { return {x.a + y.a, x.b + y.b}; }
};

}  // namespace hotset::kernels::cuda::sampling
