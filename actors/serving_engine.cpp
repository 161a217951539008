#include "actors/serving_engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/concat.h"
#include "core/log.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/dummy_weights.h"
#include "model/step_runner.h"
#include "storage/host_memory.h"
#include "storage/kv_pools.h"

namespace hotset::actors {
namespace {

constexpr std::int64_t kPrefillChunk = 256;
constexpr std::int64_t kDummyWeightBytes = 2;  // bfloat16

int threads_of(const ServerConfig& config) {
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return config.threads > 0 ? config.threads : processors;
}

class CpuEngine final : public ServingEngine {
 public:
  explicit CpuEngine(const ServerConfig& config) : backend_(kernels::make_cpu_backend(threads_of(config))) {}

  Result<ServerConfig> settle(ServerConfig config) const override {
    if (config.compute_type == ComputeTypeChoice::kBF16) {
      return invalid_argument("--compute-dtype bf16: the CPU computes in f32", "--compute-dtype");
    }
    if (!config.selection_model.empty())
      return invalid_argument("--selection-model measures a GPU: use --device cuda with it", "--selection-model");
    if (config.synthetic_prompts)
      return invalid_argument("--fill-kv synthetic measures a GPU: use --device cuda with it", "--fill-kv");
    if (config.weight_type != WeightTypeChoice::kAuto) {
      return invalid_argument("--weight-dtype chooses for a GPU, and the server runs on the CPU: leave it at auto",
                              "--weight-dtype");
    }
    if (config.gpu_memory_bytes > 0) log_warn("--gpu-memory has no effect: the server runs on the CPU");
    if (config.least_batch > 1) log_warn("--least-batch has no effect: the server runs on the CPU");
    if (config.prefill_chunk == 0) config.prefill_chunk = kPrefillChunk;
    if (config.kv_dtype == KvDTypeChoice::kAuto) config.kv_dtype = KvDTypeChoice::kF32;
    config.compute_type = ComputeTypeChoice::kF32;
    return config;
  }

  EngineLimits limits() const override { return {}; }

  Result<PoolSizes> pool_sizes(const ServerConfig& config, const model::Checkpoint& checkpoint,
                               const EngineRequest& request) const override {
    const auto memory = storage::usable_memory();
    if (!memory) return memory.error();
    if (config.load_format == "dummy" && weights_ == nullptr) {
      const std::int64_t weights = model::weight_count(checkpoint.config()) * kDummyWeightBytes;
      if (weights > memory.value().bytes) {
        return Error{ErrorCode::kOverloaded,
                     concat("the model's weights take ", weights >> 20, " MiB, of memory only ",
                            memory.value().bytes >> 20, " MiB are free: --load-format dummy needs a smaller --model"),
                     "--model"};
      }
    }
    return choose_pool_sizes(config, request.layout, request.max_context, memory.value().bytes);
  }

  Result<void> load(const ServerConfig& config, model::Checkpoint& checkpoint) override {
    if (config.load_format == "dummy") {
      weights_ = model::make_dummy_weights(checkpoint.config(), *backend_, kDummySeed);
      return {};
    }
    auto weights = model::load_weights(checkpoint, *backend_);
    if (!weights) return weights.error();
    weights_ = std::move(weights).value();
    return {};
  }

  std::string description() const override { return backend_->description(); }
  const model::ModelWeights& weights() const override { return *weights_; }

  model::CalibrateModel calibration(model::Checkpoint& /*checkpoint*/) override {
    return [this](std::span<const std::int32_t> tokens, std::int64_t rank, const model::CalibrationProgress& progress) {
      return model::calibrate(*weights_, *backend_, tokens, rank, progress);
    };
  }

  Result<std::shared_ptr<model::StepExecutor>> start(const ServerConfig& config, const EngineRequest& request,
                                                     const PoolSizes& sizes,
                                                     std::shared_ptr<const sparse::SelectionAlgorithm> keeper,
                                                     std::shared_ptr<sparse::SelectionObserver> observer) override {
    auto device =
        storage::DevicePool::create(request.layout, {.rows = sizes.device_pages, .metadata = sizes.metadata_pages});
    if (!device) return device.error();
    auto host = storage::HostPool::create(request.layout, sizes.host_pages);
    if (!host) return host.error();
    auto runner = std::make_shared<model::StepRunner>(
        std::move(weights_), std::move(backend_), std::move(device).value(), std::move(host).value(), std::move(keeper),
        model::StepRunnerLimits{.max_batch = config.max_batch, .prefill_chunk = config.prefill_chunk});
    runner->verify(config.verify_rate);
    if (observer != nullptr) runner->observe(std::move(observer));
    return std::shared_ptr<model::StepExecutor>(std::move(runner));
  }

 private:
  std::unique_ptr<kernels::Backend> backend_;  // outlives the weights
  std::unique_ptr<model::ModelWeights> weights_;
};

}  // namespace

std::unique_ptr<ServingEngine> make_cpu_engine(const ServerConfig& config) {
  return std::make_unique<CpuEngine>(config);
}

#if !defined(HOTSET_CUDA_ENGINE)
Result<std::unique_ptr<ServingEngine>> make_cuda_engine(const ServerConfig& /*config*/) {
  return Error{ErrorCode::kUnavailable, "this build has no CUDA backend", {}};
}
#endif

Result<std::unique_ptr<ServingEngine>> choose_engine(const ServerConfig& config) {
  if (config.device == "cpu") return make_cpu_engine(config);
  auto cuda = make_cuda_engine(config);
  if (cuda) return cuda;
  if (config.device == "cuda") return invalid_argument(concat("--device cuda: ", cuda.error().message), "--device");
  log_info("--device auto takes the CPU: ", cuda.error().message);
  return make_cpu_engine(config);
}

EngineRequest engine_request(const ServerConfig& config, const KvLayout& layout, std::int64_t max_context,
                             const SelectionMenu& menu) {
  EngineRequest request{.layout = layout, .max_context = max_context};
  for (const SharedPolicy& policy : menu.offers()) {
    const sparse::SelectionAlgorithm& algorithm = *policy->selection.algorithm;
    request.max_selected = std::max({request.max_selected, algorithm.max_blocks(), algorithm.forced_blocks()});
    if (config.kv_mode == KvModeChoice::kResident) continue;
    const sparse::HotBufferShape& shape = policy->hot_shape;
    sparse::HotBufferShape& largest = request.largest_hot;
    largest.hot_blocks = std::max(largest.hot_blocks, shape.hot_blocks);
    largest.ring_tokens = std::max(largest.ring_tokens, shape.ring_tokens);
    largest.block_tokens = std::max(largest.block_tokens, shape.block_tokens);
  }
  return request;
}

}  // namespace hotset::actors
