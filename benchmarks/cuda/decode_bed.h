// An engine on the GPU with dummy weights and a cache that was never computed: sequences of any length begin as if they
// had been prefilled. For benchmarks only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "benchmarks/cuda/step_probe.h"
#include "model/device_step_runner.h"
#include "model/model_config.h"

namespace hotset {

struct DecodeBedOptions {
  model::ModelConfig config;
  KvDType dtype = KvDType::kBF16;
  std::int32_t max_batch = 32;
  std::int64_t max_tokens = 0;
  std::int64_t budget = 2048;
  std::int64_t hot_buffer = 4096;
  std::int64_t host_bytes = 0;  // of the host pool; sequences share its pages where it is too small
};

enum class DecodeMode { kDense, kResident, kHot };

struct DecodeCase {
  std::int64_t context = 0;  // the longest length of the run
  std::int32_t batch = 0;
  DecodeMode mode = DecodeMode::kDense;
};

struct DecodeTimes {
  double step_ms = 0;                                // median, from one return of run() to the next
  double device_ms = 0;                              // of it, from the launch of the forward pass to the last work
  std::map<model::DecodeProbe::Part, double> parts;  // ms, of one step with events in its graph
  double misses = 0;                                 // share of the selected blocks
  double bus_bytes = 0;                              // loaded in a step
};

// Bytes of a request on the GPU.
struct DecodeBytes {
  double rows = 0, metadata = 0, tables = 0;
};

class DecodeBed {
 public:
  explicit DecodeBed(const DecodeBedOptions& options);

  [[nodiscard]] bool fits(const DecodeCase& one) const;
  [[nodiscard]] DecodeTimes run(const DecodeCase& one, double churn, int steps);
  [[nodiscard]] DecodeBytes bytes(const DecodeCase& one) const;
  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  [[nodiscard]] double weight_bytes(std::int32_t batch) const;  // that a step reads

 private:
  struct Pages {
    std::int64_t rows = 0, metadata = 0;
  };
  [[nodiscard]] Pages pages_of(const DecodeCase& one) const;  // of a sequence
  void fill_pools();
  [[nodiscard]] model::StepPlan first_plan(const DecodeCase& one);
  model::StepResult step(model::StepPlan& plan);

  DecodeBedOptions options_;
  std::shared_ptr<const sparse::SelectionAlgorithm> algorithm_;
  sparse::HotBufferShape hot_shape_;
  KvLayout layout_;
  std::int64_t row_pages_ = 0, metadata_pages_ = 0, host_pages_ = 0;
  double dense_bytes_ = 0, expert_bytes_ = 0;
  std::byte *row_pool_ = nullptr, *metadata_pool_ = nullptr;
  kernels::DenseBackend* backend_ = nullptr;
  const kernels::cuda::DeviceStream* stream_ = nullptr;
  std::unique_ptr<model::DeviceStepRunner> runner_;
  std::unique_ptr<StepProbe> probe_;
  std::uint64_t steps_ = 0;
};

}  // namespace hotset
