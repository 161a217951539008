// What a kernel of few_rows.cuh is made for, what its blocks share and what it is passed.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace hotset::kernels::cuda {

inline constexpr int kFewRowsWarps = 8;
inline constexpr int kFewRowsThreads = 32 * kFewRowsWarps;

// kWide: x is float32, W bfloat16. kSplit: warps that share a unit, all or 1.
template <class ElementType, int kTilesOfUnit, int kTokenTilesOfUnit, int kSplitOfUnit, bool kWideX>
struct FewRowsForm {
  using Element = ElementType;
  static constexpr bool kF32 = std::is_same_v<Element, float>;
  static constexpr int kTiles = kTilesOfUnit;            // of 16 rows of W
  static constexpr int kTokenTiles = kTokenTilesOfUnit;  // of 8 rows of x
  static constexpr int kSplit = kSplitOfUnit;
  static constexpr bool kWide = kWideX;
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kLines = 2;                                            // of 128 bytes of a row of W in an item
  static constexpr int kLineDepth = 128 / static_cast<int>(sizeof(Element));  // of k
  static constexpr int kDepth = kLines * kLineDepth;
  static constexpr int kXLines = kWide ? 2 * kLines : kLines;
  static constexpr int kWeightBytes = kLines * kTiles * 16 * 128;
  static constexpr int kItemBytes = kWeightBytes + kXLines * kTokens * 128;
  static constexpr int kMergeTiles = std::min(kTiles, 2 / kTokenTiles);  // whose sums are added up at once
  static constexpr int kMergeStride = 20;                                // floats of a token: no bank twice
  static constexpr int kMergeWarps = kSplit == 1 ? 1 : kFewRowsWarps;
  static constexpr int kMergeFloats = kMergeWarps * kMergeTiles * kTokens * kMergeStride;
  static constexpr int kMostShared = 227 * 1024;
  static constexpr int kSlots =
      std::min(8, (kMostShared - 2048 - 4 * kMergeFloats) / (kFewRowsWarps * kItemBytes));  // of a warp
  static_assert(!kF32 || (kTokenTiles == 1 && !kWide));
  static_assert(kSlots >= 1);
};

template <class Form>
struct alignas(1024) FewRowsShared {
  unsigned char items[kFewRowsWarps][Form::kSlots][Form::kItemBytes];
  float sums[Form::kMergeWarps][Form::kMergeTiles][Form::kTokens][Form::kMergeStride];
  std::uint64_t filled[kFewRowsWarps][Form::kSlots];
};

struct FewRowsMaps {
  CUtensorMap weight, x;
};

struct FewRowsArgs {
  const void* bias;
  void* y;
  std::int64_t y_stride, y_step;
  std::int64_t n;
  int m;
  int items;          // of a unit
  int units;          // of all products
  int product_units;  // of one
  bool y_f32, accumulate, gated;
};

}  // namespace hotset::kernels::cuda
