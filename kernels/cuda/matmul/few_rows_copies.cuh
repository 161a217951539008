// Copies of few_rows.cuh: which items a warp has, and how they come into its ring of slots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/pipeline.cuh"
#include "kernels/cuda/matmul/few_rows_form.cuh"

namespace hotset::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Weights are read once: they should not drive anything else out of the L2.
__device__ __forceinline__ std::uint64_t read_once_policy() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// First row and line of the box; of one product of several.
__device__ __forceinline__ void copy_weights(void* to, const CUtensorMap* map, std::uint64_t* barrier, int row,
                                             int line, int product, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(row), "r"(line), "r"(product), "l"(policy)
      : "memory");
}
// Eight gate rows, then the up rows of the same channels, tile by tile.
__device__ __forceinline__ void copy_gated_weights(void* to, const CUtensorMap* map, std::uint64_t* barrier, int tile,
                                                   int line, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%3, %3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(tile), "r"(line), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_rows(void* to, const CUtensorMap* map, std::uint64_t* barrier, int line,
                                          int product) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(line), "r"(product)
      : "memory");
}

// The units and items of one warp in the order in which it multiplies them.
template <class Form>
struct WarpWork {
  __device__ WarpWork(const FewRowsArgs& args, int warp)
      : first_item(warp % Form::kSplit),
        unit_step(static_cast<int>(gridDim.x) * (kFewRowsWarps / Form::kSplit)),
        first_unit(static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) * (warp / Form::kSplit)),
        units(first_item < args.items ? args.units : 0) {}
  int first_item, unit_step, first_unit;
  int units;  // end of them; 0: it has no items
};

// Copies the items of a warp. One lane uses it.
template <class Form>
class ItemCopier {
 public:
  __device__ ItemCopier(FewRowsShared<Form>& shared, const FewRowsMaps& maps, const FewRowsArgs& args, int warp)
      : items_(shared.items[warp]),
        filled_(shared.filled[warp]),
        maps_(maps),
        args_(args),
        work_(args, warp),
        item_(work_.first_item),
        bytes_(Form::kWeightBytes + static_cast<std::uint32_t>(args.m) * Form::kXLines * 128),
        policy_(read_once_policy()) {
    take_unit(work_.first_unit);
  }
  __device__ __forceinline__ bool done() const { return unit_ >= work_.units; }
  __device__ __forceinline__ void start(int slot) {
    arrive_expecting(&filled_[slot], bytes_);
    const int line = item_ * Form::kLines;
    if (args_.gated) {
      copy_gated_weights(items_[slot], &maps_.weight, &filled_[slot], row_ / 16, line, policy_);
    } else {
      copy_weights(items_[slot], &maps_.weight, &filled_[slot], row_, line, product_, policy_);
    }
  }
  // The other part of what start() expects.
  __device__ __forceinline__ void start_x(int slot) {
    copy_rows(items_[slot] + Form::kWeightBytes, &maps_.x, &filled_[slot], item_ * Form::kXLines, product_);
  }
  __device__ __forceinline__ void advance() {
    item_ += Form::kSplit;
    if (item_ < args_.items) return;
    item_ = work_.first_item;
    take_unit(unit_ + work_.unit_step);
  }

 private:
  __device__ __forceinline__ void take_unit(int unit) {
    unit_ = unit;
    product_ = unit / args_.product_units;
    row_ = (unit - product_ * args_.product_units) * 16 * Form::kTiles;
  }

  unsigned char (*items_)[Form::kItemBytes];
  std::uint64_t* filled_;
  const FewRowsMaps& maps_;
  const FewRowsArgs& args_;
  WarpWork<Form> work_;
  int item_;
  int unit_, product_, row_;
  std::uint32_t bytes_;
  std::uint64_t policy_;
};

// A warp's barriers and first items: weights before the kernels ahead are done, x behind them.
template <class Copier, std::size_t kSlots>
__device__ __forceinline__ void start_first_items(Copier& copier, std::uint64_t (&filled)[kSlots], int lane) {
  if (lane == 0) {
    for (int slot = 0; slot < static_cast<int>(kSlots); ++slot) init_barrier(&filled[slot], 1);
    publish_barriers();
    Copier early = copier;
    for (int slot = 0; slot < static_cast<int>(kSlots) && !early.done(); ++slot) {
      early.start(slot);
      early.advance();
    }
  }
  __syncwarp();
  wait_for_kernels_before();
  if (lane == 0) {
    for (int slot = 0; slot < static_cast<int>(kSlots) && !copier.done(); ++slot) {
      copier.start_x(slot);
      copier.advance();
    }
  }
  __syncwarp();
}

#endif

}  // namespace hotset::kernels::cuda
