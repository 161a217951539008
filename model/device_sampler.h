// Draws the tokens of a step on the GPU (kernels/cuda/sampling.h) and brings them to the host, into a ring of two
// steps: the results of one are read while the next one runs. The random numbers are not the CPU sampler's: a seed
// gives the same answer on the same kind of device.
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
  // The results of the step before the last one have been read.
  void begin_step();
  // Queues the drawing of one token per row from logits [padded_rows, vocabulary]; result i of the call is number
  // (what it returns) + i. Numbers of a step and the next one differ.
  [[nodiscard]] std::int64_t sample(std::span<const Row> rows, const float* logits, std::int64_t padded_rows,
                                    kernels::cuda::PinnedBlock& block);
  // Queues the way to the host of everything that was drawn since begin_step().
  void fetch();
  // The tokens on the device, by index_of(number), until the next step draws; -1: the logits were not usable.
  [[nodiscard]] const std::int32_t* tokens() const { return results_at(device_results_->data()).tokens; }
  [[nodiscard]] std::int32_t index_of(std::int64_t number) const {
    return static_cast<std::int32_t>(number % max_rows_);
  }

  // Once fetch() is done. False: the logits were not usable.
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
  [[nodiscard]] std::byte* host_half(std::int64_t half) const;

  const kernels::cuda::DeviceStream& stream_;
  std::int64_t vocabulary_, max_rows_;
  std::int64_t half_ = 0;          // of the ring: numbers [half * max_rows, (half + 1) * max_rows) are this step's
  std::int64_t used_ = 0;          // of them
  std::int64_t result_bytes_ = 0;  // of a half
  std::vector<std::int32_t> alternatives_;  // [2 * max_rows] that row asked for
  kernels::Array<std::uint32_t> counts_;    // [max_sequences, vocabulary]
  std::shared_ptr<Slots> slots_;
  std::unique_ptr<kernels::Memory> device_results_, host_results_;  // of one step; of two
  kernels::cuda::GrowingMemory workspace_, settings_, bias_;
};

}  // namespace hotset::model
