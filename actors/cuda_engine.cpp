// The GPU as a server's device.
#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "actors/gpu_options.h"
#include "actors/serving_engine.h"
#include "core/concat.h"
#include "core/log.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/mapped_pool.h"
#include "kernels/cuda/selection/store_metadata.h"
#include "kernels/tensor.h"
#include "model/device_engine.h"
#include "model/device_memory_plan.h"
#include "model/device_step_runner.h"
#include "model/dummy_weights.h"
#include "sparse/device_selection_model.h"
#include "storage/host_memory.h"
#include "storage/kv_pools.h"

namespace hotset::actors {
namespace {

constexpr std::int64_t kPrefillChunk = 4096;
// What sparse/ takes for any size of a selection. Kernels have positions and slots as 32-bit numbers: this leaves room
// for lengths that are rounded up.
constexpr std::int64_t kMostContext = std::int64_t{1} << 28;

kernels::ElementType compute_of(const ServerConfig& config) {
  return config.compute_type == ComputeTypeChoice::kF32 ? kernels::ElementType::kF32 : kernels::ElementType::kBF16;
}

// `body()`, with what a broken or full GPU throws as an Error.
template <class Body>
auto guarded(const char* what, const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kOverloaded, concat("the memory of the GPU is too small ", what), "--gpu-memory"};
  } catch (const std::exception& broken) {
    return Error{ErrorCode::kInternal, concat("the GPU failed ", what, ": ", broken.what()), {}};
  }
}

class CudaEngine final : public ServingEngine {
 public:
  CudaEngine(const ServerConfig& config, model::DeviceEngine engine)
      : weight_format_{.compute = compute_of(config),
                       .fp8 = engine.backend->takes_fp8(kernels::kFp8Block, kernels::kFp8Block)},
        engine_(std::move(engine)) {}

  Result<ServerConfig> settle(ServerConfig config) const override {
    const GpuTakes takes{.compute = weight_format_.compute,
                         .fp8_weights = weight_format_.fp8,
                         .fp8_rows = engine_.device.capability_major >= 9,
                         .batch = kernels::cuda::kMostSwapBatch};
    if (auto taken = check_gpu_options(config, takes); !taken) return taken.error();
    if (pinnable_bytes_) {
      log_warn("the host pool stays below ", gib(*pinnable_bytes_),
               ": the GPU's driver holds to the limit of locked memory (ulimit -l)");
    }
    if (config.prefill_chunk == 0) config.prefill_chunk = kPrefillChunk;
    if (config.kv_dtype == KvDTypeChoice::kAuto) config.kv_dtype = KvDTypeChoice::kBF16;
    config.compute_type =
        weight_format_.compute == kernels::ElementType::kF32 ? ComputeTypeChoice::kF32 : ComputeTypeChoice::kBF16;
    return config;
  }

  EngineLimits limits() const override {
    return {.context = kMostContext,
            .selected_blocks = kernels::cuda::kMostSelected,
            .hot_blocks = kernels::cuda::kMostHotBlocks,
            .index_rank = kernels::cuda::kMostLowRank};
  }

  Result<PoolSizes> pool_sizes(const ServerConfig& config, const model::Checkpoint& checkpoint,
                               const EngineRequest& request) const override {
    const model::ModelConfig& model = checkpoint.config();
    if (auto fp8 = check_fp8_matrices(config, fp8_matrices_of(checkpoint).size()); !fp8) return fp8.error();
    if (auto fits = model::check_device_model(model); !fits) return fits.error();
    const auto memory = storage::usable_memory();
    if (!memory) return memory.error();
    return guarded("when its memory was asked for", [&]() -> Result<PoolSizes> {
      const auto pools = gpu_pool_bytes(
          config, {.free = kernels::cuda::free_device_bytes(),
                   .loaded = weight_bytes_,
                   .weights = weights_ == nullptr ? model::device_weight_bytes(checkpoint, weight_format_) : 0,
                   .workspace = model::device_workspace_bytes(model, request.layout, weight_format_,
                                                              limits_of(config, request))});
      if (!pools) return pools.error();
      const std::int64_t host = host_pool_bytes(memory.value().bytes, kernels::cuda::kPinnedElsewhere, pinnable_bytes_);
      return choose_split_pool_sizes(config, request.layout, request.max_context, pools.value(), host);
    });
  }

  Result<void> load(const ServerConfig& config, model::Checkpoint& checkpoint) override {
    return guarded("while the weights were loaded", [&]() -> Result<void> {
      const std::int64_t before = kernels::cuda::held_device_bytes();
      if (config.load_format == "dummy") {
        engine_.weights = model::make_dummy_weights(checkpoint.config(), *engine_.backend, kDummySeed);
      } else {
        auto weights = model::load_weights(checkpoint, *engine_.backend);
        if (!weights) return weights.error();
        engine_.weights = std::move(weights).value();
      }
      weights_ = engine_.weights.get();
      weight_bytes_ = kernels::cuda::held_device_bytes() - before;
      const std::size_t fp8 = fp8_matrices_of(checkpoint).size();
      log_info("weights: ", gib(weight_bytes_), " of the GPU's memory",
               fp8 > 0 ? concat(", ", fp8, " matrices in FP8") : "");
      return {};
    });
  }

  std::string description() const override { return engine_.backend->description(); }
  const model::ModelWeights& weights() const override { return *weights_; }

  // On the CPU, which loads the model for it: calibration is once for a model.
  model::CalibrateModel calibration(model::Checkpoint& checkpoint) override {
    return [&checkpoint](std::span<const std::int32_t> tokens, std::int64_t rank,
                         const model::CalibrationProgress& progress) -> Result<model::Calibration> {
      const auto backend =
          kernels::make_cpu_backend(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
      auto weights = model::load_weights(checkpoint, *backend);
      if (!weights) return weights.error();
      return model::calibrate(*weights.value(), *backend, tokens, rank, progress);
    };
  }

  Result<std::shared_ptr<model::StepExecutor>> start(const ServerConfig& config, const EngineRequest& request,
                                                     const PoolSizes& sizes,
                                                     std::shared_ptr<const sparse::SelectionAlgorithm> keeper,
                                                     std::shared_ptr<sparse::SelectionObserver> observer) override {
    const auto memory = storage::usable_memory();
    if (!memory) return memory.error();
    return guarded("when the engine was set up", [&]() -> Result<std::shared_ptr<model::StepExecutor>> {
      auto replaced = selection_model(config, request, keeper.get());  // first: what it refuses needs no pools
      if (!replaced) return replaced.error();
      auto host = storage::HostPool::create(request.layout, sizes.host_pages,
                                            kernels::cuda::mapped_pool_memory(memory.value().bytes));
      if (!host) return host.error();
      auto device =
          storage::DevicePool::create(request.layout, {.rows = sizes.device_pages, .metadata = sizes.metadata_pages},
                                      kernels::cuda::device_pool_memory);
      if (!device) return device.error();
      auto runner = std::make_shared<model::DeviceStepRunner>(std::move(engine_), std::move(device).value(),
                                                              std::move(host).value(), std::move(keeper),
                                                              limits_of(config, request));
      runner->set_selection_model(std::move(replaced).value());
      runner->set_synthetic_prompts(config.synthetic_prompts);
      runner->observe(std::move(observer));
      return std::shared_ptr<model::StepExecutor>(std::move(runner));
    });
  }

 private:
  [[nodiscard]] std::set<std::string, std::less<>> fp8_matrices_of(const model::Checkpoint& checkpoint) const {
    return model::fp8_matrices(
        checkpoint, [&](std::int64_t rows, std::int64_t cols) { return engine_.backend->takes_fp8(rows, cols); });
  }

  // Null: none.
  Result<std::unique_ptr<const sparse::DeviceSelectionModel>> selection_model(
      const ServerConfig& config, const EngineRequest& request, const sparse::SelectionAlgorithm* keeper) {
    if (config.selection_model.empty()) return std::unique_ptr<const sparse::DeviceSelectionModel>();
    if (keeper == nullptr)
      return invalid_argument("--selection-model: with dense attention (--algorithm) there are no selections",
                              "--selection-model");
    const auto model = sparse::parse_selection_model(config.selection_model);
    if (!model) return model.error();
    if (std::holds_alternative<sparse::ChurnModel>(model.value()) &&
        keeper->metadata().kind == MetadataGeometry::Kind::kNone) {
      return invalid_argument(
          "--selection-model churn moves what scores have chosen, and --algorithm streaming has no scores",
          "--selection-model");
    }
    return sparse::DeviceSelectionModel::create(model.value(), request.layout.rows.layers, keeper->block_tokens(),
                                                *engine_.backend);
  }

  [[nodiscard]] model::DeviceRunnerLimits limits_of(const ServerConfig& config, const EngineRequest& request) const {
    return {.max_batch = config.max_batch,
            .least_rows = config.least_batch,
            .prefill_chunk = config.prefill_chunk,
            .max_tokens = request.max_context + 2,  // a stop is known one step late
            .largest_hot = request.largest_hot,
            .max_selected = request.max_selected,
            .capability_major = engine_.device.capability_major};
  }

  model::DeviceWeightFormat weight_format_;
  model::DeviceEngine engine_;
  std::optional<std::int64_t> pinnable_bytes_ = kernels::cuda::pinnable_bytes();
  const model::ModelWeights* weights_ = nullptr;
  std::int64_t weight_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<ServingEngine>> make_cuda_engine(const ServerConfig& config) {
  auto engine = model::open_device_engine(compute_of(config), config.weight_type != WeightTypeChoice::kBF16);
  if (!engine) return engine.error();
  return std::unique_ptr<ServingEngine>(std::make_unique<CudaEngine>(config, std::move(engine).value()));
}

}  // namespace hotset::actors
