#include "actors/serving_parts.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <variant>

#include "actors/pool_sizes.h"
#include "actors/selection_setup.h"
#include "actors/serving_engine.h"
#include "actors/text_sources.h"
#include "core/concat.h"
#include "core/log.h"
#include "model/checkpoint.h"
#include "model/hf_tokenizer_files.h"
#include "model/kv_layout.h"
#include "model/safetensors_checkpoint.h"
#include "sparse/selection_model.h"
#include "sparse/selection_trace.h"

namespace hotset::actors {
namespace {

namespace fs = std::filesystem;

std::string model_name_of(const ServerConfig& config) {
  if (!config.model_name.empty()) return config.model_name;
  fs::path path = fs::path(config.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" || path.extension() == ".safetensors" ? path.stem().string()
                                                                           : path.filename().string();
}

Result<void> check_sizes(const ServerConfig& config) {
  if (config.max_batch < 1 || config.max_batch > 4096) {
    return invalid_argument("--max-batch must be between 1 and 4096", "--max-batch");
  }
  if (config.prefill_chunk < 0 || config.prefill_chunk > 65536) {
    return invalid_argument("--prefill-chunk must be between 1 and 65536, or 0", "--prefill-chunk");
  }
  if (config.max_queue < 1) return invalid_argument("--max-queue must be at least 1", "--max-queue");
  if (config.max_context < 0) return invalid_argument("--max-context must not be negative", "--max-context");
  if (config.device_kv_tokens < 0)
    return invalid_argument("--device-kv-tokens must not be negative", "--device-kv-tokens");
  if (config.host_kv_bytes < 0) return invalid_argument("--host-kv must not be negative", "--host-kv");
  if (config.least_batch > config.max_batch) {
    return invalid_argument(
        concat("--least-batch ", config.least_batch, " is more than --max-batch ", config.max_batch), "--least-batch");
  }
  if (config.selection_model.empty()) return {};
  const auto replaced = sparse::parse_selection_model(config.selection_model);
  if (!replaced) return replaced.error();
  const auto* const recorded = std::get_if<sparse::RecordedModel>(&replaced.value());
  if (recorded == nullptr) return {};
  const auto trace = sparse::TraceReader::open(recorded->trace);
  if (!trace) return invalid_argument(concat("--selection-model: ", trace.error().message), "--selection-model");
  return {};
}

// With --load-format dummy only the config and the tokenizer of a folder are read.
Result<std::unique_ptr<model::Checkpoint>> open_model(const ServerConfig& config) {
  if (config.load_format != "dummy") return model::open_checkpoint(config.model);
  if (!fs::is_regular_file(fs::path(config.model) / "config.json")) {
    return invalid_argument(
        concat("--load-format dummy takes a folder with a config.json, and ", config.model, " (--model) is none"),
        "--model");
  }
  log_warn("--load-format dummy: the weights are random, and so are the answers");
  model::CheckpointContents contents;
  auto read = model::read_folder_config(config.model);
  if (!read) return read.error();
  contents.config = std::move(read).value();
  auto tokenizer = model::read_hf_tokenizer_files(config.model);
  if (!tokenizer) return tokenizer.error();
  contents.tokenizer = std::move(tokenizer).value();
  return std::make_unique<model::Checkpoint>(std::move(contents));
}

std::string mib(std::int64_t bytes) { return concat(bytes >> 20, " MiB"); }

const char* mode_name(KvModeChoice mode) {
  if (mode == KvModeChoice::kResident) return "resident";
  return mode == KvModeChoice::kHot ? "hot" : "auto";
}

const char* dtype_name(KvDType dtype) {
  if (dtype == KvDType::kF32) return "f32";
  return dtype == KvDType::kBF16 ? "bf16" : "fp8";
}

std::string summary_of(const ServingInfo& info, const model::ModelWeights& weights, const std::string& backend,
                       const ServerConfig& config, const KvPlannerConfig& pools, const SelectionSetup& selection) {
  const KvGeometry& rows = pools.layout.rows;
  const std::int64_t device_tokens = pools.device_pages / rows.layers * kPageTokens;
  const std::int64_t host_tokens = pools.host_pages * kPageTokens;
  const std::int64_t metadata_bytes = pools.metadata_pages * pools.layout.metadata.page_bytes();
  const std::int64_t host_bytes =
      host_tokens * rows.token_bytes() + pools.host_pages * pools.layout.metadata_page_bytes();
  return concat("model ", info.model_name, " (", model::architecture_name(weights.config.architecture), ", ",
                weights.parameters() / 1'000'000, ".", weights.parameters() / 100'000 % 10,
                " million parameters), context ", info.max_context, " tokens; ", backend, "; algorithm ",
                selection.description, "; kv mode ", mode_name(config.kv_mode), ", kv type ", dtype_name(rows.dtype),
                "; device pool ", device_tokens, " tokens (", mib(device_tokens * rows.token_bytes()), ", metadata ",
                mib(metadata_bytes), "), host pool ", host_tokens, " tokens (", mib(host_bytes), ")");
}

// Null: --trace-selections is not given. The file is complete when the observer is dropped.
Result<std::shared_ptr<sparse::SelectionObserver>> selection_recorder(const ServerConfig& config,
                                                                      const sparse::SelectionPolicy& policy,
                                                                      const ServingParts& parts) {
  if (config.trace_selections.empty()) return std::shared_ptr<sparse::SelectionObserver>();
  if (policy.algorithm == nullptr) {
    log_warn("--trace-selections records nothing: with dense attention there are no selections");
  }
  auto recorder = sparse::TraceWriter::create(
      config.trace_selections, {.model = parts.info.model_name,
                                .algorithm = std::string(policy.algorithm ? policy.algorithm->name() : "dense"),
                                .layers = parts.pools.layout.rows.layers,
                                .hot_ring = parts.menu.server() ? parts.menu.server()->hot_shape.ring_recent : 0});
  if (!recorder) return recorder.error();
  return std::shared_ptr<sparse::SelectionObserver>(std::move(recorder).value());
}

// Everything about text: encoder, end-of-sequence tokens, what the API tells of it. Returns the tokenizer, or null.
Result<std::shared_ptr<const model::Tokenizer>> fill_text(const ServerConfig& config,
                                                          const model::Checkpoint& checkpoint, ServingParts& parts) {
  const model::ModelConfig& model = checkpoint.config();
  auto text = load_text_parts(checkpoint.tokenizer_source(), config, parts.clock);
  if (!text) return text.error();
  text.value().vocabulary = model.vocabulary;
  const std::shared_ptr<const model::Tokenizer> tokenizer = text.value().tokenizer;
  if (tokenizer != nullptr && tokenizer->vocabulary_size() > model.vocabulary) {
    log_warn("the tokenizer has more tokens than the model: text that needs the others is refused");
  }
  parts.info.has_tokenizer = tokenizer != nullptr;
  parts.info.has_chat_template = static_cast<bool>(text.value().render);
  parts.gateway.eos_tokens = model.eos_tokens;
  if (parts.gateway.eos_tokens.empty() && tokenizer != nullptr && tokenizer->eos()) {
    parts.gateway.eos_tokens.push_back(*tokenizer->eos());
  }
  parts.encoder = std::make_shared<const PromptEncoder>(std::move(text).value());
  return tokenizer;
}

KvLayout layout_of(const ServerConfig& config, const model::ModelConfig& model,
                   const sparse::SelectionPolicy& selection) {
  return model::kv_layout_of(model, kv_dtype_of(config),
                             selection.algorithm ? selection.algorithm->metadata() : MetadataGeometry{});
}

}  // namespace

Result<std::int64_t> context_of(const ServerConfig& config, std::int64_t max_positions, const EngineLimits& limits) {
  if (config.max_context > max_positions) {
    return invalid_argument(
        concat("--max-context ", config.max_context, " is more than the model was made for (", max_positions, ")"),
        "--max-context");
  }
  const std::int64_t context = config.max_context == 0 ? max_positions : config.max_context;
  if (context > limits.context) {
    return invalid_argument(
        concat("--max-context: a context has ", context, " tokens, and this device takes at most ", limits.context),
        "--max-context");
  }
  return context;
}

Result<ServingParts> load_serving_parts(const ServerConfig& given) {
  if (const auto checked = check_sizes(given); !checked) return checked.error();
  ServingParts parts;
  parts.clock = std::make_shared<SystemClock>();
  parts.stall_timeout = std::chrono::milliseconds(given.stall_timeout_ms);
  auto checkpoint = open_model(given);
  if (!checkpoint) return checkpoint.error();
  auto engine = choose_engine(given);
  if (!engine) return engine.error();
  const auto settled = engine.value()->settle(given);
  if (!settled) return settled.error();
  const ServerConfig& config = settled.value();
  const model::ModelConfig& model = checkpoint.value()->config();
  const EngineLimits limits = engine.value()->limits();
  const auto context = context_of(config, model.max_positions, limits);
  if (!context) return context.error();
  const auto algorithm = algorithm_of(config, model, context.value());
  if (!algorithm) return algorithm.error();

  parts.info.model_name = model_name_of(config);
  parts.info.max_context = context.value();
  parts.info.vocabulary = static_cast<std::int32_t>(model.vocabulary);
  parts.gateway = {.max_context = context.value(), .max_sequences = config.max_queue, .eos_tokens = {}};
  parts.scheduler = {
      .max_batch = config.max_batch, .prefill_chunk = config.prefill_chunk, .max_queue = config.max_queue};
  parts.pools.mode = config.kv_mode;
  const auto tokenizer = fill_text(config, *checkpoint.value(), parts);
  if (!tokenizer) return tokenizer.error();

  // Before the weights are read, so that an impossible size is refused at once; the sizes hold what they leave.
  const auto expected = expected_selection(algorithm.value(), config, model);
  if (!expected) return expected.error();
  const auto expected_menu = make_selection_menu(config, expected.value(), limits);
  if (!expected_menu) return expected_menu.error();
  const KvLayout expected_layout = layout_of(config, model, expected.value());
  if (const auto early = engine.value()->pool_sizes(
          config, *checkpoint.value(), engine_request(config, expected_layout, context.value(), expected_menu.value()));
      !early) {
    return early.error();
  }
  if (const auto loaded = engine.value()->load(config, *checkpoint.value()); !loaded) return loaded.error();
  const auto selection = set_up_selection(algorithm.value(), config, *checkpoint.value(),
                                          engine.value()->calibration(*checkpoint.value()), tokenizer.value().get());
  if (!selection) return selection.error();
  const sparse::SelectionPolicy& policy = selection.value().policy;
  if (policy.algorithm == nullptr && config.kv_mode == KvModeChoice::kHot) {
    log_warn("--kv-mode hot has no effect: with dense attention (--algorithm) no sequence can go hot");
  }
  auto menu = make_selection_menu(config, policy, limits);
  if (!menu) return menu.error();
  parts.menu = std::move(menu).value();
  parts.pools.layout = layout_of(config, model, policy);
  const EngineRequest request = engine_request(config, parts.pools.layout, context.value(), parts.menu);
  const auto sizes = engine.value()->pool_sizes(config, *checkpoint.value(), request);
  if (!sizes) return sizes.error();
  parts.pools.device_pages = sizes.value().device_pages;
  parts.pools.metadata_pages = sizes.value().metadata_pages;
  parts.pools.host_pages = sizes.value().host_pages;
  parts.info.summary = summary_of(parts.info, engine.value()->weights(), engine.value()->description(), config,
                                  parts.pools, selection.value());
  auto recorder = selection_recorder(config, policy, parts);
  if (!recorder) return recorder.error();
  auto executor = engine.value()->start(config, request, sizes.value(), policy.algorithm, std::move(recorder).value());
  if (!executor) return executor.error();
  parts.executor = std::move(executor).value();
  return parts;
}

}  // namespace hotset::actors
