// Base of tests that need a GPU: without one they skip, and CTest counts the program as skipped.
#pragma once

#include <gtest/gtest.h>

#include <iostream>

#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_available()) GTEST_SKIP() << "no GPU here";
  }
};

template <class Parameter>
class GpuTestWithParam : public GpuTest, public ::testing::WithParamInterface<Parameter> {};

}  // namespace hotset::kernels::cuda
