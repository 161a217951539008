// A CUDA stream as headers outside kernels/cuda may name it: cudaStream_t without CUDA's headers.
#pragma once

struct CUstream_st;

namespace hotset::kernels::cuda {

using Stream = CUstream_st*;  // not owned; null: the default stream

}  // namespace hotset::kernels::cuda
