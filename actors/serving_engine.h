// The device that a server runs on, at start-up: opened, loaded with the model, asked for the sizes of its pools, and
// turned into what runs the steps. One for the CPU, one for a GPU. Start-up only, one thread, calls in the order below.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/engine_limits.h"
#include "actors/pool_sizes.h"
#include "actors/selection_menu.h"
#include "core/config.h"
#include "core/kv_geometry.h"
#include "core/result.h"
#include "model/checkpoint.h"
#include "model/index_basis_source.h"
#include "model/step_executor.h"
#include "model/weights.h"
#include "sparse/selection.h"
#include "sparse/selection_observer.h"

namespace hotset::actors {

// What the sizes of an engine follow from.
struct EngineRequest {
  KvLayout layout;
  std::int64_t max_context = 0;        // tokens
  sparse::HotBufferShape largest_hot;  // of the policies on the menu; hot_blocks 0: none can be hot
  std::int64_t max_selected = 0;       // blocks of a selection, of any policy
};
// For sequences of any policy on the menu.
EngineRequest engine_request(const ServerConfig& config, const KvLayout& layout, std::int64_t max_context,
                             const SelectionMenu& menu);

inline constexpr std::uint64_t kDummySeed = 1;  // of --load-format dummy

class ServingEngine {
 public:
  virtual ~ServingEngine() = default;

  // `config` with everything that is left to the device (auto) decided. Errors name an option that this device refuses.
  [[nodiscard]] virtual Result<ServerConfig> settle(ServerConfig config) const = 0;
  [[nodiscard]] virtual EngineLimits limits() const = 0;
  // Sizes if the model were loaded now: for the first check, before the weights are read.
  [[nodiscard]] virtual Result<PoolSizes> pool_sizes(const ServerConfig& config, const model::Checkpoint& checkpoint,
                                                     const EngineRequest& request) const = 0;
  // With --load-format dummy the checkpoint has a config alone.
  [[nodiscard]] virtual Result<void> load(const ServerConfig& config, model::Checkpoint& checkpoint) = 0;
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual const model::ModelWeights& weights() const = 0;
  // Valid while the engine and the checkpoint are.
  [[nodiscard]] virtual model::CalibrateModel calibration(model::Checkpoint& checkpoint) = 0;
  // The engine is used up. `observer`: told of every selection; null: nobody.
  [[nodiscard]] virtual Result<std::shared_ptr<model::StepExecutor>> start(
      const ServerConfig& config, const EngineRequest& request, const PoolSizes& sizes,
      std::shared_ptr<const sparse::SelectionAlgorithm> keeper,
      std::shared_ptr<sparse::SelectionObserver> observer) = 0;
};

[[nodiscard]] std::unique_ptr<ServingEngine> make_cpu_engine(const ServerConfig& config);
// kUnavailable in words where this build has no CUDA backend or this machine no GPU for it.
[[nodiscard]] Result<std::unique_ptr<ServingEngine>> make_cuda_engine(const ServerConfig& config);

// As --device says. auto takes a GPU; where there is none that this build can use, the CPU, and a log line says why.
[[nodiscard]] Result<std::unique_ptr<ServingEngine>> choose_engine(const ServerConfig& config);

}  // namespace hotset::actors
