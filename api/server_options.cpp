#include "api/server_options.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/options.h"
#include "core/concat.h"

namespace hotset::api {
namespace {

using Apply = std::function<std::optional<std::string>(ServerConfig&, const std::string&)>;

constexpr std::int64_t kManyTokens = 1LL << 40;
constexpr std::int64_t kDay = 24LL * 3600 * 1000;  // ms

template <class Field>
Apply integer(Field ServerConfig::* field, std::int64_t lowest, std::int64_t highest) {
  return [=](ServerConfig& config, const std::string& text) -> std::optional<std::string> {
    std::int64_t value = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc{} || read.ptr != text.data() + text.size() || value < lowest || value > highest) {
      return concat("an integer from ", lowest, " to ", highest);
    }
    if constexpr (std::is_same_v<Field, std::optional<std::int64_t>>) {
      config.*field = value;
    } else {
      config.*field = static_cast<Field>(value);
    }
    return std::nullopt;
  };
}

Apply real(double ServerConfig::* field, double lowest, double highest) {
  return [=](ServerConfig& config, const std::string& text) -> std::optional<std::string> {
    double value = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc{} || read.ptr != text.data() + text.size() || !(value >= lowest && value <= highest)) {
      return concat("a number from ", lowest, " to ", highest);
    }
    config.*field = value;
    return std::nullopt;
  };
}

Apply size(std::int64_t ServerConfig::* field, std::int64_t lowest) {
  return [=](ServerConfig& config, const std::string& text) -> std::optional<std::string> {
    const auto bytes = parse_size(text);
    if (!bytes || *bytes < lowest) {
      return concat("a size in bytes, KB, MB, GB, TB, KiB, MiB, GiB or TiB, for example 512MB or 4GiB",
                    lowest > 0 ? concat(", at least ", lowest, " bytes") : "");
    }
    config.*field = *bytes;
    return std::nullopt;
  };
}

Apply text(std::string ServerConfig::* field) {
  return [=](ServerConfig& config, const std::string& value) -> std::optional<std::string> {
    config.*field = value;
    return std::nullopt;
  };
}

template <class Field>
Apply choice(Field ServerConfig::* field, std::vector<std::pair<std::string, Field>> values) {
  return [field, values = std::move(values)](ServerConfig& config,
                                             const std::string& value) -> std::optional<std::string> {
    std::string allowed;
    for (const auto& [name, meaning] : values) {
      if (name == value) {
        config.*field = meaning;
        return std::nullopt;
      }
      allowed += concat(allowed.empty() ? "" : ", ", name);
    }
    return concat("one of ", allowed);
  };
}

Apply word(std::string ServerConfig::* field, const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& name : words) values.emplace_back(name, name);
  return choice(field, std::move(values));
}

std::vector<ServerOption> model_and_http_options() {
  using C = ServerConfig;
  constexpr std::string_view kModel = "Model", kHttp = "HTTP";
  return {
      {"model", kModel, "PATH", "GGUF file or checkpoint folder (default: the model that ./run serve fetches)",
       text(&C::model)},
      {"model-name", kModel, "NAME", "Name in the API (default: from the path)", text(&C::model_name)},
      {"chat-template", kModel, "FILE", "Jinja chat template (default: the checkpoint's own)", text(&C::chat_template)},
      {"content-special-tokens", kModel, "on|off",
       "Whether special-token strings inside message content become control tokens (default: on)",
       choice(&C::content_special_tokens, {{"on", true}, {"off", false}})},
      {"max-context", kModel, "TOKENS", "Longest prompt plus output; 0: the model's own limit (default: 0)",
       integer(&C::max_context, 0, kManyTokens)},

      {"host", kHttp, "ADDRESS", "Address to listen on (default: 127.0.0.1)", text(&C::host)},
      {"port", kHttp, "PORT", "Port to listen on; 0: any free one (default: 8080)", integer(&C::port, 0, 65535)},
      {"api-key", kHttp, "KEY", "Key that /v1/*, /tokenize and /detokenize ask for; empty: none (default: none)",
       text(&C::api_key)},
      {"max-connections", kHttp, "N", "Open client connections; more get 503 (default: 4096)",
       integer(&C::max_connections, 1, 1'000'000)},
      {"max-queue", kHttp, "N", "Sequences that wait for admission; more get 503 with retry-after (default: 512)",
       integer(&C::max_queue, 1, 1'000'000)},
      {"max-body", kHttp, "SIZE", "Largest request body; a larger one gets 413 (default: 64MiB)",
       size(&C::max_body_bytes, 1024)},
      {"request-timeout-ms", kHttp, "MS",
       "Time to receive a whole request, and for a client to take output (default: 30000)",
       integer(&C::request_timeout_ms, 100, kDay)},
      {"keepalive-comment-ms", kHttp, "MS", "Comment in a stream that was silent that long; 0: never (default: 15000)",
       integer(&C::keepalive_comment_ms, 0, kDay)},
      {"drain-timeout-ms", kHttp, "MS", "Time that running answers get after SIGTERM (default: 30000)",
       integer(&C::drain_timeout_ms, 0, kDay)},
      {"stall-timeout-ms", kHttp, "MS",
       "With work to do and no step done for that long, /health says 503; more than the longest step takes "
       "(default: 120000)",
       integer(&C::stall_timeout_ms, 1000, kDay)},
  };
}

std::vector<ServerOption> engine_and_cache_options() {
  using C = ServerConfig;
  constexpr std::string_view kEngine = "Engine", kCache = "KV cache";
  return {
      {"device", kEngine, "cpu|cuda|auto", "Backend (default: auto)", word(&C::device, {"cpu", "cuda", "auto"})},
      {"load-format", kEngine, "auto|dummy",
       "dummy: random weights of the shape that the folder's config.json tells, for measurements (default: auto)",
       word(&C::load_format, {"auto", "dummy"})},
      {"threads", kEngine, "N", "Compute threads; 0: the processors this process may use (default: 0)",
       integer(&C::threads, 0, 1024)},
      {"max-batch", kEngine, "N", "Sequences in one step (default: 16)", integer(&C::max_batch, 1, 4096)},
      {"least-batch", kEngine, "N",
       "On a GPU, sequences that a decode step is padded to; with as many as --max-batch the other requests change no "
       "bit "
       "of an answer (default: 1)",
       integer(&C::least_batch, 1, 4096)},
      {"prefill-chunk", kEngine, "TOKENS", "Prompt tokens in one step; 0: 256 on the CPU, 4096 on a GPU (default: 0)",
       integer(&C::prefill_chunk, 0, 65536)},
      {"compute-dtype", kEngine, "auto|f32|bf16",
       "Number format of weights and matrix products; auto: f32 on the CPU, bf16 on a GPU (default: auto)",
       choice(
           &C::compute_type,
           {{"auto", ComputeTypeChoice::kAuto}, {"f32", ComputeTypeChoice::kF32}, {"bf16", ComputeTypeChoice::kBF16}})},
      {"weight-dtype", kEngine, "auto|bf16|fp8",
       "Number format on a GPU of weights that a checkpoint has in FP8; auto: fp8 on a Hopper that computes in bf16, "
       "else that of --compute-dtype (default: auto)",
       choice(&C::weight_type,
              {{"auto", WeightTypeChoice::kAuto}, {"bf16", WeightTypeChoice::kBF16}, {"fp8", WeightTypeChoice::kFp8}})},
      {"gpu-memory", kEngine, "SIZE",
       "GPU memory to use, for example 40GiB; 0: nine tenths of what is free (default: 0)",
       size(&C::gpu_memory_bytes, 0)},

      {"kv-mode", kCache, "auto|resident|hot",
       "Where sequences keep their rows; hot: from the first sparse step (default: auto)",
       choice(&C::kv_mode,
              {{"auto", KvModeChoice::kAuto}, {"resident", KvModeChoice::kResident}, {"hot", KvModeChoice::kHot}})},
      {"kv-dtype", kCache, "auto|f32|bf16|fp8",
       "Number format of cached rows and DSA index keys; auto: f32 on the CPU, bf16 on a GPU (default: auto)",
       choice(&C::kv_dtype, {{"auto", KvDTypeChoice::kAuto},
                             {"f32", KvDTypeChoice::kF32},
                             {"bf16", KvDTypeChoice::kBF16},
                             {"fp8", KvDTypeChoice::kFp8}})},
      {"device-kv-tokens", kCache, "TOKENS",
       "Device pool, in tokens of all layers; 0: from the memory that is there (default: 0)",
       integer(&C::device_kv_tokens, 0, kManyTokens)},
      {"device-metadata-tokens", kCache, "TOKENS",
       "Device pool of what selection keeps of each token; 0: as many as the host pool holds (default: 0)",
       integer(&C::device_metadata_tokens, 0, kManyTokens)},
      {"host-kv", kCache, "SIZE", "Host pool, for example 4GiB; 0: from the memory that is there (default: 0)",
       size(&C::host_kv_bytes, 0)},
  };
}

std::vector<ServerOption> selection_options() {
  using C = ServerConfig;
  constexpr std::string_view kSelection = "Sparse attention";
  return {
      {"algorithm", kSelection, "NAME",
       "auto, dsa, lowrank, quest, streaming or dense; auto: dsa for a model with an indexer, else lowrank (default: "
       "auto)",
       word(&C::algorithm, {"auto", "dsa", "lowrank", "quest", "streaming", "dense"})},
      {"sparse-budget", kSelection, "TOKENS",
       "Tokens that a generated token attends to, of lowrank and quest; dsa takes the model's index_topk (default: "
       "2048)",
       integer(&C::sparse_budget, 1, kManyTokens)},
      {"sparse-block", kSelection, "TOKENS", "Tokens of a block of quest and streaming; divides 64 (default: 16)",
       choice<std::int64_t>(&C::sparse_block,
                            {{"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"16", 16}, {"32", 32}, {"64", 64}})},
      {"sparse-window", kSelection, "TOKENS", "Newest tokens that are always attended to (default: 64)",
       integer(&C::sparse_window, 1, kManyTokens)},
      {"sparse-sink", kSelection, "TOKENS", "First tokens that lowrank always attends to (default: 4)",
       integer(&C::sparse_sink, 0, kManyTokens)},
      {"sparse-threshold", kSelection, "TOKENS",
       "Up to this length everything is attended to; dsa takes the model's index_topk (default: 4096)",
       integer(&C::sparse_threshold, 0, kManyTokens)},
      {"quest-combine", kSelection, "mean|max|softmax", "How quest joins the scores of the heads (default: max)",
       word(&C::quest_combine, {"mean", "max", "softmax"})},
      {"hot-ring", kSelection, "TOKENS", "Newest tokens kept on the device in hot mode (default: max(128, window))",
       integer(&C::hot_ring, 1, kManyTokens)},
      {"hot-buffer", kSelection, "TOKENS",
       "Selected tokens kept on the device in hot mode, per sequence and layer (default: twice the budget)",
       integer(&C::hot_buffer, 1, kManyTokens)},
      {"verify-rate", kSelection, "SHARE",
       "On the CPU, share of steps and layers whose rows and attention are checked against the host pool (default: 0)",
       real(&C::verify_rate, 0, 1)},
      {"index-rank", kSelection, "R",
       "Directions of a low-rank index key; even (default: 16 for head dimension 64, 32 for 128, 64 for latent rows)",
       integer(&C::index_rank, 2, 4096)},
      {"cache-dir", kSelection, "FOLDER",
       "Where calibrations are kept between starts (default: $XDG_CACHE_HOME/hotset, else ~/.cache/hotset)",
       text(&C::cache_dir)},
      {"trace-selections", kSelection, "FILE",
       "Record every selection in this file, for hotset inspect and hotset replay (default: none)",
       text(&C::trace_selections)},
      {"selection-model", kSelection, "MODEL",
       "For measurements with --load-format dummy on a GPU: selections by churn=P, where a share P of 0 to 1 changes "
       "from token to token, or as recorded by --trace-selections, trace=FILE (default: none)",
       text(&C::selection_model)},
      {"fill-kv", kSelection, "computed|synthetic",
       "synthetic: for the same measurements, prompts are random cache rows, computed for their last token alone "
       "(default: computed)",
       choice(&C::synthetic_prompts, {{"computed", false}, {"synthetic", true}})},
  };
}

// In the order of the help text.
std::vector<ServerOption> make_options() {
  std::vector<ServerOption> out = model_and_http_options();
  for (const auto& group : {engine_and_cache_options(), selection_options()}) {
    out.insert(out.end(), group.begin(), group.end());
  }
  out.push_back({"log-level", "Log", "LEVEL", "debug, info, warn, error or off (default: info)",
                 word(&ServerConfig::log_level, {"debug", "info", "warn", "error", "off"})});
  return out;
}

}  // namespace

std::span<const ServerOption> server_options() {
  static const std::vector<ServerOption> options = make_options();
  return options;
}

Result<void> check_server_config(const ServerConfig& config) {
  if (config.host.empty()) return invalid_argument("--host must not be empty.", "--host");
  const auto printable = [](unsigned char c) { return c > 0x20 && c < 0x7F; };
  if (!std::all_of(config.api_key.begin(), config.api_key.end(), printable)) {
    return invalid_argument("--api-key may hold printable ASCII without blanks only.", "--api-key");
  }
  return {};
}

}  // namespace hotset::api
