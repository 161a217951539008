#include "api/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "api/config_file.h"
#include "api/server_options.h"
#include "core/concat.h"

namespace hotset::api {
namespace {

std::string environment_name(std::string_view option) {
  std::string name = "HOTSET_";
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// `source` is what the user wrote: "--port", "HOTSET_PORT", "port in hotset.toml".
Result<void> apply(const ServerOption& option, const std::string& source, const std::string& value,
                   ServerConfig& config) {
  if (const auto requirement = option.apply(config, value)) {
    return invalid_argument(concat(source, " must be ", *requirement, "."), concat("--", option.name));
  }
  return {};
}

Result<void> apply_file(const std::string& path, ServerConfig& config) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  // << calls it a failure when there is nothing to copy.
  const bool empty = file && file.peek() == std::ifstream::traits_type::eof() && !file.bad();
  if (!empty && (!file || !(text << file.rdbuf()))) {
    return invalid_argument(concat("The configuration file ", path, " can't be read."), "--config");
  }
  const auto entries = parse_config_text(text.str());
  if (!entries) return invalid_argument(concat(path, ", ", entries.error().message, "."), "--config");
  const auto options = server_options();
  for (const auto& entry : entries.value()) {
    const auto option =
        std::find_if(options.begin(), options.end(), [&](const auto& o) { return o.name == entry.key; });
    if (option == options.end()) {
      return invalid_argument(concat(path, ", line ", entry.line, ": there is no option '", entry.key, "'."),
                              "--config");
    }
    const auto source = concat(path, ", line ", entry.line, ": ", entry.key);
    if (auto applied = apply(*option, source, entry.value, config); !applied) return applied;
  }
  return {};
}

Result<ServerConfig> build_server_config(const std::map<std::string_view, std::string>& flags,
                                         const std::string& config_flag, const Environment& environment) {
  ServerConfig config;
  const std::string file = !config_flag.empty() ? config_flag : environment("HOTSET_CONFIG").value_or("");
  if (!file.empty()) {
    if (auto applied = apply_file(file, config); !applied) return applied.error();
  }
  for (const auto& option : server_options()) {
    const auto name = environment_name(option.name);
    if (const auto value = environment(name); value && !value->empty()) {
      if (auto applied = apply(option, name, *value, config); !applied) return applied.error();
    }
  }
  for (const auto& option : server_options()) {
    const auto flag = flags.find(option.name);
    if (flag == flags.end()) continue;
    if (auto applied = apply(option, concat("--", option.name), flag->second, config); !applied) return applied.error();
  }
  if (auto checked = check_server_config(config); !checked) return checked.error();
  return config;
}

void declare_chat(CLI::App& chat, ChatOptions& options) {
  chat.add_option("--url", options.url, "Address of the server")
      ->type_name("URL")
      ->capture_default_str()
      ->envname("HOTSET_URL");
  chat.add_option("--model", options.model, "Model name (default: the one that the server serves)")->type_name("NAME");
  chat.add_option("--system", options.system, "System message")->type_name("TEXT");
  chat.add_option("--api-key", options.api_key, "API key of the server")->type_name("KEY")->envname("HOTSET_API_KEY");
  chat.add_option("--max-tokens", options.max_tokens, "Longest answer in tokens; 0: what fits (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30).description(""));
  chat.add_option("--temperature", options.temperature, "0 (always the likeliest token) to 2 (default: the server's)")
      ->type_name("T")
      ->check(CLI::Range(0.0, 2.0).description(""));
}

void declare_calibrate(CLI::App& calibrate, CalibrateOptions& options) {
  calibrate.add_option("model", options.model, "GGUF file or checkpoint folder")->type_name("MODEL")->required();
  calibrate.add_option("--text", options.text, "Text in UTF-8 to calibrate with (default: a built-in one)")
      ->type_name("FILE");
  calibrate
      .add_option(
          "--rank", options.rank,
          "Directions of an index key; even (default: 16 for head dimension 64, 32 for 128, 64 for latent rows)")
      ->type_name("R");
  calibrate
      .add_option("--out", options.out,
                  "File to write (default: FOLDER/index_basis.safetensors, or FILE.gguf.index_basis.safetensors)")
      ->type_name("FILE");
  calibrate
      .add_option(
          "--cache-dir", options.cache_dir,
          "Where the file goes when it can't be written beside the model (default: $XDG_CACHE_HOME/hotset, else "
          "~/.cache/hotset)")
      ->type_name("FOLDER")
      ->envname("HOTSET_CACHE_DIR");
  calibrate
      .add_option("--threads", options.threads, "Compute threads; 0: the processors this process may use (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024).description(""));
}

void declare_inspect(CLI::App& inspect, InspectOptions& options) {
  inspect.require_subcommand(1);
  CLI::App* trace =
      inspect.add_subcommand("trace", "Print the selections that --trace-selections recorded, one JSON object a line");
  trace->add_option("file", options.file, "A trace")->type_name("FILE")->required();
  trace->add_option("--sequence", options.sequence, "Only this sequence, \"request\" in the output (default: all)")
      ->type_name("N");
  trace->add_option("--layer", options.layer, "Only this layer (default: all)")->type_name("N");
  trace->add_option("--limit", options.limit, "Stop after so many lines; 0: never (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62).description(""));
}

void declare_replay(CLI::App& replay, ReplayArguments& options) {
  replay.add_option("file", options.file, "A trace that --trace-selections recorded")->type_name("FILE")->required();
  replay
      .add_option("--hot-buffer", options.hot_buffer,
                  "Sizes of the hot buffer of a sequence and layer: times the largest selection (1.5x), or tokens")
      ->type_name("LIST")
      ->capture_default_str();
  replay
      .add_option("--hot-ring", options.hot_ring,
                  "Newest tokens kept on the device beside the buffer (default: the recorded server's)")
      ->type_name("TOKENS");
  replay.add_option("--policies", options.policies, "lru: the server's; belady: the best possible")
      ->type_name("LIST")
      ->capture_default_str();
  replay
      .add_option("--skip", options.skip,
                  "Rows at the beginning of each sequence that are not counted, because they fill the empty buffer")
      ->type_name("ROWS")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62).description(""));
  replay.add_flag("--json", options.json, "Print one JSON object instead of tables");
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Result<CommandLine> parse_command_line(std::span<const std::string> arguments, const Environment& environment) {
  CommandLine line;
  CLI::App app("Hotset: an LLM server for long contexts behind an OpenAI-compatible API.", "hotset");
  app.get_formatter()->column_width(40);
  bool version_flag = false;
  app.add_flag("--version", version_flag, "Print the version");

  CLI::App* serve = app.add_subcommand("serve", "Serve a model over HTTP");
  serve->footer(
      "Every option can also be given as environment variable (HOTSET_MAX_BATCH for --max-batch) and as a key of the "
      "--config file (max-batch = 16). A flag wins over the environment, the environment over the file.");
  std::map<std::string_view, std::string> values;
  std::map<std::string_view, CLI::Option*> declared;
  for (const auto& option : server_options()) {
    auto* made = serve->add_option(concat("--", option.name), values[option.name], std::string(option.help));
    declared[option.name] = made->type_name(std::string(option.value))->group(std::string(option.group));
  }
  std::string config_file;
  serve->add_option("--config", config_file, "TOML or INI file with options as keys")
      ->type_name("FILE")
      ->group("Configuration");

  CLI::App* chat = app.add_subcommand("chat", "Talk to a running server in the terminal");
  declare_chat(*chat, line.chat);
  CLI::App* calibrate = app.add_subcommand(
      "calibrate", "Make a model's basis of low-rank index keys, for hotset serve --algorithm lowrank");
  declare_calibrate(*calibrate, line.calibrate);
  CLI::App* inspect = app.add_subcommand("inspect", "Print what a recorded file holds");
  declare_inspect(*inspect, line.inspect);
  CLI::App* replay = app.add_subcommand("replay", "Run recorded selections through hot buffers of several sizes");
  declare_replay(*replay, line.replay);
  CLI::App* version = app.add_subcommand("version", "Print the version");
  app.require_subcommand(0, 1);

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const CLI::App* chosen = &app;
    while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
    line.help = chosen->help();
    return line;
  } catch (const CLI::ParseError& error) {
    return invalid_argument(concat(error.what(), " (see hotset --help)"));
  }
  if (*version || version_flag) {
    line.command = Command::kVersion;
  } else if (*chat) {
    line.command = Command::kChat;
  } else if (*calibrate) {
    line.command = Command::kCalibrate;
  } else if (*inspect) {
    line.command = Command::kInspectTrace;
  } else if (*replay) {
    line.command = Command::kReplay;
  } else if (*serve) {
    line.command = Command::kServe;
    std::erase_if(values, [&](const auto& entry) { return declared[entry.first]->count() == 0; });
    auto config = build_server_config(values, config_file, environment);
    if (!config) return config.error();
    line.server = std::move(config).value();
  } else {
    line.help = app.help();
  }
  return line;
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc{} || !(value >= 0)) return std::nullopt;
  std::string unit(read.ptr, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::string_view kPrefixes = "kmgt";
  double factor = 1;
  if (!unit.empty() && kPrefixes.find(unit.front()) != std::string_view::npos) {
    const bool binary = unit.size() > 1 && unit[1] == 'i';
    for (std::size_t i = 0; i <= kPrefixes.find(unit.front()); ++i) factor *= binary ? 1024 : 1000;
    unit.erase(0, binary ? 2 : 1);
    if (unit != "b") return std::nullopt;
  } else if (!unit.empty() && unit != "b") {
    return std::nullopt;
  }
  const double bytes = value * factor;
  if (bytes > 9e18) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

}  // namespace hotset::api
