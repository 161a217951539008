// The kernel of few_rows.h.
//
// Blocks take units of 16 kTiles channels. A unit's sum over k comes in items: 256 bytes of k of every row, W's and
// x's, one copy each. Item i belongs to warp i % kSplit of those that share the unit. A warp copies its items itself:
// into a ring of slots of its own, refilled as soon as it has read one, so that nobody waits for anybody before the
// sums of the warps are added up. All slots of a block hold 130 to 200 KB, several times what must be under way to keep
// the memory busy; those of the first items are filled before the kernels ahead are done.
//
// Weights are the rows of the tensor cores' products (m16n8k16), tokens the columns. Which k a product's columns stand
// for is free, if it is the same for both: a lane of four takes 16 bytes of k at 32 bytes * lane, then the 16 behind,
// which the swizzle of the copies spreads over all banks. Columns without a token multiply what happens to lie there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/pipeline.cuh"
#include "kernels/cuda/matmul/few_rows_copies.cuh"
#include "kernels/cuda/matmul/few_rows_form.cuh"
#include "kernels/cuda/matmul/few_rows_products.cuh"
#include "kernels/cuda/matmul/few_rows_results.cuh"

namespace hotset::kernels::cuda {

template <class Form>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    few_rows_kernel([[maybe_unused]] const __grid_constant__ FewRowsMaps maps,
                    [[maybe_unused]] const __grid_constant__ FewRowsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<FewRowsShared<Form>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) &
                                                         ~std::uintptr_t{1023});
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_kernel_start();
  ItemCopier<Form> copier(shared, maps, args, warp);
  start_first_items(copier, shared.filled[warp], lane);
  const WarpWork<Form> work(args, warp);
  int slot = 0;
  std::uint32_t parity = 0;
  for (int unit = work.first_unit; unit < args.units; unit += work.unit_step) {
    std::conditional_t<Form::kF32, LaneSums<Form>, ProductSums<Form>> sums = {};
    for (int item = work.first_item; item < args.items; item += Form::kSplit) {
      wait_barrier(&shared.filled[warp][slot], parity);
      multiply_item<Form>(sums, shared.items[warp][slot], args.m, lane);
      __syncwarp();
      if (lane == 0 && !copier.done()) {
        copier.start(slot);
        copier.start_x(slot);
        copier.advance();
      }
      if (++slot == Form::kSlots) {
        slot = 0;
        parity ^= 1U;
      }
    }
    TileSums<Form> joined = {};
    finish_sums<Form>(sums, joined, lane);
    if constexpr (Form::kSplit == 1) {
      store_own_unit<Form>(args, unit, joined, lane);
    } else {
      store_unit<Form>(shared, args, unit, joined);
    }
  }
#endif
}

}  // namespace hotset::kernels::cuda
