#include "api/options.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "api/default_model.h"
#include "api/server_options.h"

namespace hotset::api {
namespace {

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() : folder_(std::filesystem::path(::testing::TempDir()) / "hotset_options_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~OptionsTest() override { std::filesystem::remove_all(folder_); }

  Result<CommandLine> parse(std::vector<std::string> arguments) {
    return parse_command_line(arguments, [this](const std::string& name) { return lookup(name); });
  }
  ServerConfig serve(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "serve");
    auto line = parse(arguments);
    EXPECT_TRUE(line.ok()) << line.error().message;
    return line ? line.value().server : ServerConfig{};
  }
  std::string failure(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "serve");
    const auto line = parse(arguments);
    return line.ok() ? "" : line.error().message;
  }
  std::optional<std::string> lookup(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string write(const std::string& text) const {
    const auto path = folder_ / "hotset.toml";
    std::ofstream(path) << text;
    return path.string();
  }

  std::filesystem::path folder_;
  std::map<std::string, std::string> environment_;
};

TEST_F(OptionsTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const auto file = write("port = 1001\nmax-batch = 2\nthreads = 3 # comment\nhost = \"0.0.0.0\"\n");
  environment_ = {{"HOTSET_PORT", "1002"}, {"HOTSET_MAX_BATCH", "4"}, {"HOTSET_THREADS", ""}};
  const auto config = serve({"--config", file, "--port", "1003"});
  EXPECT_EQ(config.port, 1003);
  EXPECT_EQ(config.max_batch, 4);
  EXPECT_EQ(config.threads, 3) << "an empty variable counts as not set";
  EXPECT_EQ(config.host, "0.0.0.0");
  EXPECT_EQ(config.prefill_chunk, 0);
}

TEST_F(OptionsTest, ConfigFileMayComeFromTheEnvironment) {
  environment_["HOTSET_CONFIG"] = write("[serve]\nkv_mode = hot\n; note\napi-key = 'a#b'\n");
  const auto config = serve({});
  EXPECT_EQ(config.kv_mode, KvModeChoice::kHot);
  EXPECT_EQ(config.api_key, "a#b");
}

TEST_F(OptionsTest, EveryOptionOfTheServerIsRead) {
  const auto config = serve({"--model",   "m.gguf",
                             "--host",    "::1",
                             "--port=9",  "--device",
                             "cpu",       "--threads",
                             "2",         "--max-context",
                             "99",        "--chat-template",
                             "t.jinja",   "--algorithm",
                             "streaming", "--sparse-block",
                             "8",         "--sparse-window",
                             "112",       "--sparse-threshold",
                             "0",         "--hot-ring",
                             "128",       "--kv-mode",
                             "resident",  "--kv-dtype",
                             "bf16",      "--device-kv-tokens",
                             "512",       "--host-kv",
                             "1GiB",      "--max-batch",
                             "3",         "--least-batch",
                             "2",         "--prefill-chunk",
                             "64",        "--max-queue",
                             "7",         "--max-connections",
                             "8",         "--max-body",
                             "2MB",       "--request-timeout-ms",
                             "500",       "--keepalive-comment-ms",
                             "0",         "--drain-timeout-ms",
                             "10",        "--stall-timeout-ms",
                             "5000",      "--log-level",
                             "debug",     "--model-name",
                             "n",         "--content-special-tokens",
                             "off",       "--trace-selections",
                             "t.trace",   "--selection-model",
                             "churn=0.1", "--fill-kv",
                             "synthetic"});
  EXPECT_EQ(config.model, "m.gguf");
  EXPECT_EQ(config.host, "::1");
  EXPECT_EQ(config.port, 9);
  EXPECT_EQ(config.device, "cpu");
  EXPECT_EQ(config.threads, 2);
  EXPECT_EQ(config.max_context, 99);
  EXPECT_EQ(config.chat_template, "t.jinja");
  EXPECT_EQ(config.algorithm, "streaming");
  EXPECT_EQ(config.sparse_block, 8);
  EXPECT_EQ(config.sparse_window, 112);
  EXPECT_EQ(config.sparse_threshold, 0);
  EXPECT_EQ(config.hot_ring, 128);
  EXPECT_EQ(config.kv_mode, KvModeChoice::kResident);
  EXPECT_EQ(config.kv_dtype, KvDTypeChoice::kBF16);
  EXPECT_EQ(config.device_kv_tokens, 512);
  EXPECT_EQ(config.host_kv_bytes, 1 << 30);
  EXPECT_EQ(config.max_batch, 3);
  EXPECT_EQ(config.least_batch, 2);
  EXPECT_EQ(config.prefill_chunk, 64);
  EXPECT_EQ(config.max_queue, 7);
  EXPECT_EQ(config.max_connections, 8);
  EXPECT_EQ(config.max_body_bytes, 2'000'000);
  EXPECT_EQ(config.request_timeout_ms, 500);
  EXPECT_EQ(config.keepalive_comment_ms, 0);
  EXPECT_EQ(config.drain_timeout_ms, 10);
  EXPECT_EQ(config.stall_timeout_ms, 5000);
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.model_name, "n");
  EXPECT_FALSE(config.content_special_tokens);
  EXPECT_EQ(config.trace_selections, "t.trace");
  EXPECT_EQ(config.selection_model, "churn=0.1");
  EXPECT_TRUE(config.synthetic_prompts);
}

TEST_F(OptionsTest, WeightTypes) {
  EXPECT_EQ(serve({}).weight_type, WeightTypeChoice::kAuto);
  EXPECT_EQ(serve({"--weight-dtype", "fp8"}).weight_type, WeightTypeChoice::kFp8);
  EXPECT_EQ(serve({"--weight-dtype", "bf16"}).weight_type, WeightTypeChoice::kBF16);
  EXPECT_NE(failure({"--weight-dtype", "int8"}).find("--weight-dtype"), std::string::npos);
}

TEST_F(OptionsTest, DefaultsInTheHelpAreTheRealOnes) {
  const ServerConfig defaults;
  for (const auto& option : server_options()) {
    const auto at = option.help.find("(default: ");
    ASSERT_NE(at, option.help.npos) << option.name;
    std::string text(option.help.substr(at + 10));
    text.pop_back();
    ServerConfig config;
    // Defaults that are words ("from the path") are descriptions; those that can be read must change nothing.
    if (option.value == "PATH" || option.value == "NAME" || option.value == "FILE" || option.name == "api-key" ||
        option.value == "FOLDER" || option.name == "hot-ring" || option.name == "hot-buffer" ||
        option.name == "index-rank") {
      continue;
    }
    EXPECT_EQ(option.apply(config, text), std::nullopt) << option.name;
    EXPECT_EQ(config.port, defaults.port);
    EXPECT_EQ(config.host, defaults.host);
    EXPECT_EQ(config.max_connections, defaults.max_connections);
    EXPECT_EQ(config.max_queue, defaults.max_queue);
    EXPECT_EQ(config.max_body_bytes, defaults.max_body_bytes);
    EXPECT_EQ(config.request_timeout_ms, defaults.request_timeout_ms);
    EXPECT_EQ(config.keepalive_comment_ms, defaults.keepalive_comment_ms);
    EXPECT_EQ(config.drain_timeout_ms, defaults.drain_timeout_ms);
    EXPECT_EQ(config.stall_timeout_ms, defaults.stall_timeout_ms);
    EXPECT_EQ(config.max_batch, defaults.max_batch);
    EXPECT_EQ(config.prefill_chunk, defaults.prefill_chunk);
    EXPECT_EQ(config.sparse_block, defaults.sparse_block);
    EXPECT_EQ(config.sparse_window, defaults.sparse_window);
    EXPECT_EQ(config.sparse_threshold, defaults.sparse_threshold);
    EXPECT_EQ(config.algorithm, defaults.algorithm);
    EXPECT_EQ(config.device, defaults.device);
    EXPECT_EQ(config.log_level, defaults.log_level);
  }
}

TEST_F(OptionsTest, BadValuesNameTheirSource) {
  EXPECT_EQ(failure({"--port", "70000"}), "--port must be an integer from 0 to 65535.");
  EXPECT_EQ(failure({"--port", "80x"}), "--port must be an integer from 0 to 65535.");
  EXPECT_EQ(failure({"--kv-mode", "warm"}), "--kv-mode must be one of auto, resident, hot.");
  EXPECT_EQ(failure({"--sparse-block", "12"}), "--sparse-block must be one of 1, 2, 4, 8, 16, 32, 64.");
  EXPECT_NE(failure({"--prefill-chunk", "-1"}), "");
  EXPECT_NE(failure({"--max-batch", "0"}), "");
  EXPECT_NE(failure({"--host-kv", "4GX"}).find("--host-kv must be a size"), std::string::npos);
  EXPECT_NE(failure({"--frobnicate", "1"}).find("--frobnicate"), std::string::npos);
  EXPECT_NE(failure({"--port"}).find("--port"), std::string::npos);
  environment_["HOTSET_THREADS"] = "many";
  EXPECT_EQ(failure({}), "HOTSET_THREADS must be an integer from 0 to 1024.");
}

TEST_F(OptionsTest, BadFilesNameTheLine) {
  EXPECT_NE(failure({"--config", write("port = 1\nprot = 2\n")}).find("line 2: there is no option 'prot'"),
            std::string::npos);
  EXPECT_NE(failure({"--config", write("port = x\n")}).find("line 1: port must be an integer"), std::string::npos);
  EXPECT_NE(failure({"--config", write("port\n")}).find("line 1: expected 'key = value'"), std::string::npos);
  EXPECT_NE(failure({"--config", write("[http]\nport = 1\n")}).find("line 1: there is no section [http]"),
            std::string::npos);
  EXPECT_NE(failure({"--config", write("host = \"a\n")}).find("line 1: the quotes"), std::string::npos);
  EXPECT_NE(failure({"--config", write("max-batch = 1\nport = 2\nmax_batch = 1\n")})
                .find("line 3: 'max-batch' was already set in line 1"),
            std::string::npos);
  EXPECT_NE(failure({"--config", (folder_ / "absent.toml").string()}).find("can't be read"), std::string::npos);
  EXPECT_NE(failure({"--config", folder_.string()}).find("can't be read"), std::string::npos);
}

TEST_F(OptionsTest, AnEmptyFileAndAByteOrderMarkAreFine) {
  EXPECT_EQ(serve({"--config", write("")}).port, ServerConfig{}.port);
  EXPECT_EQ(serve({"--config", write("# nothing\n")}).port, ServerConfig{}.port);
  EXPECT_EQ(serve({"--config", write("\xef\xbb\xbfport = 7\n")}).port, 7);
  EXPECT_EQ(serve({"--config", write("\xef\xbb\xbf")}).port, ServerConfig{}.port);
}

TEST_F(OptionsTest, Sizes) {
  EXPECT_EQ(parse_size("0"), 0);
  EXPECT_EQ(parse_size("123"), 123);
  EXPECT_EQ(parse_size("512MB"), 512'000'000);
  EXPECT_EQ(parse_size("4GiB"), 4LL << 30);
  EXPECT_EQ(parse_size("1.5 kib"), 1536);
  EXPECT_EQ(parse_size("2TB"), 2'000'000'000'000);
  for (const char* bad : {"", "GB", "-1", "1G", "1GiBs", "1XB", "nan", "inf", "1e30"})
    EXPECT_EQ(parse_size(bad), std::nullopt) << bad;
}

TEST_F(OptionsTest, HelpListsEverySubcommandAndOption) {
  EXPECT_NE(parse({}).value().help.find("serve"), std::string::npos);
  const auto help = parse({"serve", "--help"}).value();
  EXPECT_EQ(help.command, Command::kHelp);
  for (const auto& option : server_options())
    EXPECT_NE(help.help.find("--" + std::string(option.name)), std::string::npos);
  EXPECT_NE(help.help.find("HOTSET_MAX_BATCH"), std::string::npos);
  EXPECT_EQ(parse({"version"}).value().command, Command::kVersion);
  EXPECT_EQ(parse({"--version"}).value().command, Command::kVersion);
  EXPECT_FALSE(parse({"dance"}).ok());
}

TEST_F(OptionsTest, ChatOptions) {
  const auto line =
      parse({"chat", "--url", "http://h:1", "--system", "Be brief.", "--temperature", "0", "--max-tokens", "9"});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line.value().command, Command::kChat);
  EXPECT_EQ(line.value().chat.url, "http://h:1");
  EXPECT_EQ(line.value().chat.system, "Be brief.");
  EXPECT_EQ(line.value().chat.temperature, 0.0);
  EXPECT_EQ(line.value().chat.max_tokens, 9);
  EXPECT_FALSE(parse({"chat", "--temperature", "3"}).ok());
}

TEST_F(OptionsTest, CalibrateOptions) {
  const auto line = parse({"calibrate", "models/m.gguf", "--text", "t.txt", "--rank", "24", "--out", "o", "--threads",
                           "3", "--cache-dir", "c"});
  ASSERT_TRUE(line.ok()) << line.error().message;
  EXPECT_EQ(line.value().command, Command::kCalibrate);
  const auto& options = line.value().calibrate;
  EXPECT_EQ(options.model, "models/m.gguf");
  EXPECT_EQ(options.text, "t.txt");
  EXPECT_EQ(options.rank, 24);
  EXPECT_EQ(options.out, "o");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.cache_dir, "c");
  EXPECT_EQ(parse({"calibrate", "m"}).value().calibrate.rank, std::nullopt);
  EXPECT_NE(parse({"calibrate"}).error().message.find("model"), std::string::npos);
  EXPECT_NE(parse({"calibrate", "m", "--rank", "many"}).error().message.find("--rank"), std::string::npos);
  EXPECT_NE(parse({"calibrate", "m", "--threads", "-1"}).error().message.find("--threads"), std::string::npos);
}

TEST_F(OptionsTest, IndexRankAndCacheFolder) {
  const auto config = parse({"serve", "--index-rank", "8", "--cache-dir", "/c"}).value().server;
  EXPECT_EQ(config.index_rank, 8);
  EXPECT_EQ(config.cache_dir, "/c");
  EXPECT_EQ(parse({"serve"}).value().server.index_rank, std::nullopt);
  EXPECT_NE(failure({"--index-rank", "1"}).find("--index-rank"), std::string::npos);
}

TEST_F(OptionsTest, DefaultModelIsFoundOrTheErrorSaysHowToGetIt) {
  const auto find = [this] {
    return find_default_model([this](const std::string& name) { return lookup(name); }, folder_ / "work",
                              folder_ / "repo" / "build" / "release");
  };
  EXPECT_NE(find().error().message.find("./run serve"), std::string::npos);
  const auto put = [this](const std::string& place) {
    const auto path = folder_ / place / "SmolLM2-135M-Instruct.Q4_1.gguf";
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "x";
    return path.string();
  };
  environment_["XDG_CACHE_HOME"] = (folder_ / "cache").string();
  const auto in_cache = put("cache/hotset/models");
  EXPECT_EQ(find().value(), in_cache);
  const auto in_repository = put("repo/.cache/models");
  EXPECT_EQ(find().value(), in_repository);
  environment_["HOTSET_DEFAULT_MODEL"] = in_cache;
  EXPECT_EQ(find().value(), in_cache);
  environment_["HOTSET_DEFAULT_MODEL"] = "/absent.gguf";
  EXPECT_FALSE(find().ok());
}

}  // namespace
}  // namespace hotset::api
