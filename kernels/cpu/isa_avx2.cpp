#include <immintrin.h>

#include "core/half.h"
#include "kernels/cpu/isa_kernels.h"

namespace hotset::kernels {
namespace {

// clang-format off
#include "kernels/cpu/simd_avx2.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/prefill_kernels.h"
#include "kernels/cpu/selection_kernels.h"
// clang-format on

}  // namespace

const IsaKernels kAvx2Kernels = {"AVX2",         quantize_row, matmul,    rms_norm_row, layer_norm_row,
                                 rope_row,       silu_gate,    load_key,  slot_tile,    merge_partial,
                                 finish_partial, prefill,      kSelection};

}  // namespace hotset::kernels
