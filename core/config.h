// The server's settings, as plain values. The command line, environment and file are read in api/options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hotset {

enum class KvModeChoice { kAuto, kResident, kHot };
enum class KvDTypeChoice { kAuto, kF32, kBF16, kFp8 };
enum class ComputeTypeChoice { kAuto, kF32, kBF16 };
enum class WeightTypeChoice { kAuto, kBF16, kFp8 };

struct ServerConfig {
  // model
  std::string model;                   // path of a .gguf file or a checkpoint folder
  std::string model_name;              // name in the API; empty: from the path
  std::string chat_template;           // file; empty: the checkpoint's own
  bool content_special_tokens = true;  // special-token strings inside message content become control tokens
  std::int64_t max_context = 0;        // tokens; 0: the model's own limit

  // HTTP
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  std::string api_key;  // empty: none asked
  std::int64_t max_connections = 4096;
  std::int64_t max_queue = 512;  // requests waiting for admission; more get 503 with retry-after
  std::int64_t max_body_bytes = 64 << 20;
  std::int64_t request_timeout_ms = 30'000;    // to receive a whole request; to write a piece of an answer
  std::int64_t keepalive_comment_ms = 15'000;  // SSE comment when a stream was silent that long; 0: never
  std::int64_t drain_timeout_ms = 30'000;      // after SIGTERM, running answers get that long
  std::int64_t stall_timeout_ms = 120'000;     // with work to do and no step done for that long, /health says 503

  // engine
  std::string device = "auto";     // cpu, cuda, auto
  int threads = 0;                 // compute threads; 0: the processors this process may use
  std::int64_t max_batch = 16;     // sequences in one step
  std::int64_t least_batch = 1;    // rows that a GPU's decode steps are padded to
  std::int64_t prefill_chunk = 0;  // prompt tokens in one step; 0: 256 on the CPU, 4,096 on a GPU
  std::string load_format = "auto";
  ComputeTypeChoice compute_type = ComputeTypeChoice::kAuto;  // of matrix products; auto: f32 on the CPU, bf16 on a GPU
  // Of a GPU's weights that the checkpoint has in FP8. auto: FP8 where kernels multiply by it, else the compute type.
  WeightTypeChoice weight_type = WeightTypeChoice::kAuto;
  std::int64_t gpu_memory_bytes = 0;  // that this process may use there; 0: what is free

  // cache
  KvDTypeChoice kv_dtype = KvDTypeChoice::kAuto;
  KvModeChoice kv_mode = KvModeChoice::kAuto;
  std::int64_t device_kv_tokens = 0;        // 0: from the memory that is there
  std::int64_t device_metadata_tokens = 0;  // 0: as many as the host pool holds
  std::int64_t host_kv_bytes = 0;           // 0: from the memory that is there

  // selection
  std::string algorithm = "auto";  // auto, dsa, lowrank, quest, streaming, dense
  std::int64_t sparse_budget = 2048;
  std::int64_t sparse_block = 16;
  std::int64_t sparse_window = 64;
  std::int64_t sparse_sink = 4;
  std::int64_t sparse_threshold = 4096;
  std::string quest_combine = "max";       // mean, max, softmax
  std::optional<std::int64_t> hot_ring;    // default: max(128, window)
  std::optional<std::int64_t> hot_buffer;  // tokens per sequence and layer; default: twice the budget
  double verify_rate = 0;                  // share of (step, layer) that is checked against the host pool
  std::optional<std::int64_t> index_rank;  // low-rank index keys; default: by head dimension
  std::string cache_dir;         // what is kept between starts; empty: $XDG_CACHE_HOME/hotset, ~/.cache/hotset
  std::string trace_selections;  // file that every selection is recorded in; empty: none

  // measurements with dummy weights on a GPU
  std::string selection_model;     // takes the place of the model's selections; empty: none
  bool synthetic_prompts = false;  // a prompt's rows are random numbers instead of being computed

  std::string log_level = "info";
};

}  // namespace hotset
