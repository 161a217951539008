# The CUDA compiler and the way to declare CUDA libraries and tests. Sets HOTSET_HAS_CUDA.
#
# AUTO: with nvcc 13 or newer the kernels are built (for sm_80 and sm_90a), without it they are not. ON: nvcc is required.

set(HOTSET_HAS_CUDA OFF)
if(HOTSET_CUDA STREQUAL "OFF")
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(HOTSET_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HOTSET_CUDA=ON: nvcc was not found; put it on the PATH or set CUDACXX")
  endif()
  return()
endif()
# Every kernel names its architectures itself; this only keeps CMake from adding its own.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  if(HOTSET_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HOTSET_CUDA=ON: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old; version 13 is needed")
  endif()
  message(STATUS "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old for the CUDA kernels: they are left out")
  return()
endif()
set(HOTSET_HAS_CUDA ON)
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# CMake 3.25 does not know that nvcc 13 speaks C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
find_package(CUDAToolkit REQUIRED)

# 90a: wgmma and its like, which plain sm_90 code can't use. `-arch=sm_90a` would emit sm_90 PTX beside it.
set(HOTSET_CUDA_SM90A --generate-code=arch=compute_90a,code=sm_90a)
set(HOTSET_CUDA_SM80 --generate-code=arch=compute_80,code=sm_80)
set(HOTSET_CUDA_FLAGS --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers
    -Werror=cross-execution-space-call --Wno-deprecated-gpu-targets -lineinfo)

# hotset_cuda_library(NAME source...): a static library of kernels for both architectures.
function(hotset_cuda_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  # Kernels with their line numbers take a fifth of the space: 38 MB of the server's binary otherwise.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${HOTSET_CUDA_FLAGS} --compress-mode=size
                                         ${HOTSET_CUDA_SM90A} ${HOTSET_CUDA_SM80}>)
  target_link_libraries(${name} PUBLIC hotset_core CUDA::cudart_static)
endfunction()

# hotset_gpu_test(NAME LIBS lib... SOURCES source...): a GoogleTest program that needs a GPU: without one every test of it
# skips, which CTest counts and prints.
function(hotset_gpu_test name)
  hotset_test(${name} ${ARGN})
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${HOTSET_CUDA_FLAGS} ${HOTSET_CUDA_SM90A} ${HOTSET_CUDA_SM80}>)
  target_link_libraries(${name} PRIVATE CUDA::cudart_static)
  set_tests_properties(${name} PROPERTIES LABELS gpu)
endfunction()
