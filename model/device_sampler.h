// Draws the tokens of a step on the GPU (kernels/cuda/sampling.h) and brings them to the host. The random numbers are
// not the CPU sampler's: a seed gives the same answer on the same kind of device.
// Thread: the stream that runs the steps; a SequenceState may be destroyed on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/dense_backend.h"
#include "model/sampler.h"
#include "model/step_plan.h"

namespace hotset::model {

// What a sequence with penalties keeps: its row of the counts of tokens.
struct DeviceSampling {
  std::shared_ptr<std::int32_t> slot;
  std::vector<std::int32_t> prompt;  // until it is complete
};

class DeviceSampler {
 public:
  // `max_rows`: of a step, prompts included. `max_sequences`: that run beside each other.
  DeviceSampler(kernels::DenseBackend& backend, const kernels::cuda::DeviceStream& stream, std::int64_t vocabulary,
                std::int64_t max_rows, std::int64_t max_sequences);

  // A piece of the sequence's prompt, in order; `complete`: its last one. Before the first sample().
  void see_prompt(SequenceState& state, std::span<const std::int32_t> tokens, bool complete,
                  kernels::cuda::PinnedBlock& block);

  struct Row {
    SequenceState* state = nullptr;
    std::int64_t position = 0;  // of the token that is drawn
  };
  void begin_step() { used_ = 0; }
  // Queues the drawing of one token per row from logits [padded_rows, vocabulary]; result i of the call is number
  // (what it returns) + i.
  [[nodiscard]] std::int64_t sample(std::span<const Row> rows, const float* logits, std::int64_t padded_rows,
                                    kernels::cuda::PinnedBlock& block);
  // Queues the way to the host of everything that was drawn since begin_step().
  void fetch();

  // Once the stream is synchronised. False: the logits were not usable.
  [[nodiscard]] bool result(std::int64_t number, SampledToken& token) const;

 private:
  struct Slots {
    std::mutex mutex;
    std::vector<std::int32_t> free;
  };
  struct Results {  // [max_rows] of each
    std::int32_t* tokens = nullptr;
    float* logprobs = nullptr;
    std::int32_t* top_ids = nullptr;
    float* top_logprobs = nullptr;
    std::uint8_t* usable = nullptr;
  };
  [[nodiscard]] Results results_at(void* memory) const;

  const kernels::cuda::DeviceStream& stream_;
  std::int64_t vocabulary_, max_rows_;
  std::int64_t used_ = 0;
  std::int64_t result_bytes_ = 0;
  std::vector<std::int32_t> alternatives_;  // [max_rows] that row asked for
  kernels::Array<std::uint32_t> counts_;    // [max_sequences, vocabulary]
  std::shared_ptr<Slots> slots_;
  std::unique_ptr<kernels::Memory> device_results_, host_results_;
  kernels::cuda::GrowingMemory workspace_, settings_, bias_;
};

}  // namespace hotset::model
