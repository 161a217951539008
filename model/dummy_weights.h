// Weights of a model's shape without a checkpoint: seeded random matrices, norms of 1, biases of 0. For measurements:
// the model says nothing sensible, and its selections are nearly random.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/dense_backend.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace hotset::model {

// `config` is a checked one. The same numbers on every backend, made on its device: a model of 16 GB takes seconds on a
// GPU. Where the config says that weights are FP8 and the backend keeps them so, those that load_weights() would keep
// (fp8_matrices()) are rounded to that. A matrix of K inputs has the standard deviation K^-1/2, so that activations and
// logits keep their size.
[[nodiscard]] std::unique_ptr<ModelWeights> make_dummy_weights(const ModelConfig& config,
                                                               kernels::DenseBackend& backend, std::uint64_t seed);

}  // namespace hotset::model
