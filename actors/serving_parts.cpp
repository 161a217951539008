#include "actors/serving_parts.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "actors/pool_sizes.h"
#include "actors/text_sources.h"
#include "core/concat.h"
#include "core/log.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/step_runner.h"
#include "model/transformer.h"
#include "storage/host_memory.h"
#include "storage/kv_pools.h"

namespace hotset::actors {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDefaultRing = 128;  // newest tokens kept on the device in hot mode

std::string model_name_of(const ServerConfig& config) {
  if (!config.model_name.empty()) return config.model_name;
  fs::path path = fs::path(config.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" || path.extension() == ".safetensors" ? path.stem().string()
                                                                           : path.filename().string();
}

Result<void> check_device(const ServerConfig& config) {
  if (config.device == "auto" || config.device == "cpu") return {};
  if (config.device == "cuda") return invalid_argument("--device cuda: this build has no CUDA backend", "--device");
  return invalid_argument("--device must be auto, cpu or cuda", "--device");
}

Result<void> check_sizes(const ServerConfig& config) {
  if (config.load_format != "auto") return invalid_argument("--load-format: this build has only auto", "--load-format");
  if (config.max_batch < 1 || config.max_batch > 4096) {
    return invalid_argument("--max-batch must be between 1 and 4096", "--max-batch");
  }
  if (config.prefill_chunk < 1 || config.prefill_chunk > 65536) {
    return invalid_argument("--prefill-chunk must be between 1 and 65536", "--prefill-chunk");
  }
  if (config.max_queue < 1) return invalid_argument("--max-queue must be at least 1", "--max-queue");
  if (config.max_context < 0) return invalid_argument("--max-context must not be negative", "--max-context");
  if (config.device_kv_tokens < 0)
    return invalid_argument("--device-kv-tokens must not be negative", "--device-kv-tokens");
  if (config.host_kv_bytes < 0) return invalid_argument("--host-kv must not be negative", "--host-kv");
  return {};
}

Result<std::int64_t> context_of(const ServerConfig& config, const model::ModelConfig& model) {
  if (config.max_context == 0) return model.max_positions;
  if (config.max_context > model.max_positions) {
    return invalid_argument(concat("--max-context ", config.max_context, " is more than the model was made for (",
                                   model.max_positions, ")"),
                            "--max-context");
  }
  return config.max_context;
}

Result<sparse::SelectionPolicy> choose_selection(const ServerConfig& config) {
  sparse::SelectionPolicy policy;
  policy.threshold = config.sparse_threshold;
  if (config.algorithm == "auto" || config.algorithm == "dense") return policy;
  if (config.algorithm != "streaming") {
    return invalid_argument("--algorithm: this build has auto, dense and streaming", "--algorithm");
  }
  auto algorithm = sparse::make_streaming(config.sparse_block, config.sparse_window);
  if (!algorithm) return algorithm.error();
  policy.algorithm = std::move(algorithm).value();
  return policy;
}

// `pools`: geometry and sizes are set.
Result<void> set_hot_shape(const ServerConfig& config, const sparse::SelectionPolicy& policy, KvPlannerConfig& pools) {
  pools.mode = config.kv_mode;
  pools.sparse = policy.algorithm != nullptr;
  pools.threshold = policy.threshold;
  if (!pools.sparse) return {};
  const std::int64_t window = policy.algorithm->window_tokens();
  const std::int64_t ring = config.hot_ring.value_or(std::max(kDefaultRing, window));
  if (ring < window) {
    return invalid_argument(concat("--hot-ring must hold the window of ", window, " tokens"), "--hot-ring");
  }
  auto shape = sparse::make_hot_buffer_shape(policy.algorithm->max_blocks(), policy.algorithm->block_tokens(), ring);
  if (!shape) return shape.error();
  pools.hot_shape = shape.value();
  return {};
}

Result<PoolSizes> sizes_now(const ServerConfig& config, const KvGeometry& geometry, std::int64_t max_context) {
  const auto memory = storage::usable_memory();
  if (!memory) return memory.error();
  return choose_pool_sizes(config, geometry, max_context, memory.value().bytes);
}

std::string mib(std::int64_t bytes) { return concat(bytes >> 20, " MiB"); }

const char* mode_name(KvModeChoice mode) {
  if (mode == KvModeChoice::kResident) return "resident";
  return mode == KvModeChoice::kHot ? "hot" : "auto";
}

std::string summary_of(const ServingInfo& info, const model::ModelWeights& weights, const std::string& backend,
                       const ServerConfig& config, const KvPlannerConfig& pools,
                       const sparse::SelectionPolicy& policy) {
  const KvGeometry& geometry = pools.geometry;
  const std::int64_t device_tokens = pools.device_pages / geometry.layers * kPageTokens;
  const std::int64_t host_tokens = pools.host_pages * kPageTokens;
  return concat("model ", info.model_name, " (", model::architecture_name(weights.config.architecture), ", ",
                weights.parameters() / 1'000'000, ".", weights.parameters() / 100'000 % 10,
                " million parameters), context ", info.max_context, " tokens; ", backend, "; algorithm ",
                policy.algorithm ? policy.algorithm->name() : "dense", ", kv mode ", mode_name(config.kv_mode),
                ", kv type ", geometry.dtype == KvDType::kF32 ? "f32" : "bf16", "; device pool ", device_tokens,
                " tokens (", mib(device_tokens * geometry.token_bytes()), "), host pool ", host_tokens, " tokens (",
                mib(host_tokens * geometry.token_bytes()), ")");
}

}  // namespace

Result<ServingParts> load_serving_parts(const ServerConfig& config) {
  for (const Result<void>& checked : {check_device(config), check_sizes(config)}) {
    if (!checked) return checked.error();
  }
  ServingParts parts;
  parts.clock = std::make_shared<SystemClock>();
  auto policy = choose_selection(config);
  if (!policy) return policy.error();
  parts.policy = std::move(policy).value();

  auto checkpoint = model::open_checkpoint(config.model);
  if (!checkpoint) return checkpoint.error();
  const model::ModelConfig& model = checkpoint.value()->config();
  const auto context = context_of(config, model);
  if (!context) return context.error();
  auto text = load_text_parts(checkpoint.value()->tokenizer_source(), config, parts.clock);
  if (!text) return text.error();
  text.value().vocabulary = model.vocabulary;
  if (text.value().tokenizer != nullptr && text.value().tokenizer->vocabulary_size() > model.vocabulary) {
    log_warn("the tokenizer has more tokens than the model: text that needs the others is refused");
  }

  parts.info.model_name = model_name_of(config);
  parts.info.max_context = context.value();
  parts.info.vocabulary = static_cast<std::int32_t>(model.vocabulary);
  parts.info.has_tokenizer = text.value().tokenizer != nullptr;
  parts.info.has_chat_template = static_cast<bool>(text.value().render);
  parts.gateway = {.max_context = context.value(), .max_sequences = config.max_queue, .eos_tokens = model.eos_tokens};
  if (parts.gateway.eos_tokens.empty() && parts.info.has_tokenizer && text.value().tokenizer->eos()) {
    parts.gateway.eos_tokens.push_back(*text.value().tokenizer->eos());
  }
  parts.encoder = std::make_shared<const PromptEncoder>(std::move(text).value());
  parts.scheduler = {
      .max_batch = config.max_batch, .prefill_chunk = config.prefill_chunk, .max_queue = config.max_queue};

  const bool bf16 = config.kv_dtype == KvDTypeChoice::kBF16;
  parts.pools.geometry = model::kv_geometry_of(model, bf16 ? KvDType::kBF16 : KvDType::kF32);
  if (const auto hot = set_hot_shape(config, parts.policy, parts.pools); !hot) return hot.error();
  // Before the weights are read, so that an impossible size is refused at once; the sizes hold what they leave.
  if (const auto early = sizes_now(config, parts.pools.geometry, context.value()); !early) return early.error();

  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  auto backend = kernels::make_cpu_backend(config.threads > 0 ? config.threads : processors);
  auto weights = model::load_weights(*checkpoint.value(), *backend);
  if (!weights) return weights.error();
  const auto sizes = sizes_now(config, parts.pools.geometry, context.value());
  if (!sizes) return sizes.error();
  parts.pools.device_pages = sizes.value().device_pages;
  parts.pools.host_pages = sizes.value().host_pages;
  auto device = storage::DevicePool::create(KvLayout::uniform(parts.pools.geometry),
                                            {.rows = parts.pools.device_pages, .metadata = 0});
  if (!device) return device.error();
  auto host = storage::HostPool::create(KvLayout::uniform(parts.pools.geometry), parts.pools.host_pages);
  if (!host) return host.error();
  parts.info.summary =
      summary_of(parts.info, *weights.value(), backend->description(), config, parts.pools, parts.policy);
  parts.executor = std::make_shared<model::StepRunner>(
      std::move(weights).value(), std::move(backend), std::move(device).value(), std::move(host).value(), nullptr,
      model::StepRunnerLimits{.max_batch = config.max_batch, .prefill_chunk = config.prefill_chunk});
  return parts;
}

}  // namespace hotset::actors
