// The command line: subcommands, options, environment variables and the configuration file.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/config.h"
#include "core/result.h"

namespace hotset::api {

struct ChatOptions {
  std::string url = "http://127.0.0.1:8080";
  std::string model;  // empty: the one that the server serves
  std::string system;
  std::string api_key;
  std::int64_t max_tokens = 0;  // 0: what fits
  std::optional<double> temperature;
};

struct CalibrateOptions {
  std::string model;                 // as ServerConfig::model; never empty
  std::string text;                  // file; empty: the built-in text
  std::optional<std::int64_t> rank;  // absent: by head dimension
  std::string out;                   // file; empty: beside the model
  std::string cache_dir;  // where the file goes when it can't lie beside the model; as ServerConfig::cache_dir
  int threads = 0;        // 0: the processors this process may use
};

// hotset inspect trace
struct InspectOptions {
  std::string file;
  std::optional<std::uint64_t> sequence;  // absent: all
  std::optional<std::int32_t> layer;      // absent: all
  std::int64_t limit = 0;                 // lines; 0: all
};

// hotset replay
struct ReplayArguments {
  std::string file;
  std::string hot_buffer = "1x,1.25x,1.5x,2x,3x,4x";  // times the largest selection, or tokens
  std::string policies = "lru,belady";
  std::optional<std::int64_t> hot_ring;  // absent: the recorded server's
  std::int64_t skip = 1;                 // rows of each sequence
  bool json = false;
};

enum class Command { kServe, kChat, kCalibrate, kInspectTrace, kReplay, kVersion, kHelp };

struct CommandLine {
  Command command = Command::kHelp;
  ServerConfig server;         // kServe; `model` may be empty: the default model (default_model.h)
  ChatOptions chat;            // kChat
  CalibrateOptions calibrate;  // kCalibrate
  InspectOptions inspect;      // kInspectTrace
  ReplayArguments replay;      // kReplay
  std::string help;            // kHelp
};

// Value of an environment variable; nullopt or empty when not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
[[nodiscard]] std::optional<std::string> process_environment(const std::string& name);

// Precedence: flag > environment (HOTSET_<FLAG>) > file (--config) > default. `arguments` without the program's name.
// Errors name the option, variable or key, and say what is allowed.
[[nodiscard]] Result<CommandLine> parse_command_line(std::span<const std::string> arguments,
                                                     const Environment& environment);

// Bytes of "512MB", "4GiB", "1.5GB" or a plain number; KB, MB, GB, TB are powers of 1000, KiB... of 1024. Any case.
[[nodiscard]] std::optional<std::int64_t> parse_size(std::string_view text);

}  // namespace hotset::api
