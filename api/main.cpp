#include <malloc.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "api/calibrate_command.h"
#include "api/chat_client.h"
#include "api/default_model.h"
#include "api/inspect_command.h"
#include "api/options.h"
#include "api/replay_command.h"
#include "api/serve_command.h"
#include "api/version.h"

namespace {

int fail(const std::string& message) {
  std::cerr << "hotset: " << message << '\n';
  return 1;
}

int serve(hotset::ServerConfig config) {
  if (config.model.empty()) {
    std::error_code ignored;
    const auto binary = std::filesystem::read_symlink("/proc/self/exe", ignored);
    auto model = hotset::api::find_default_model(hotset::api::process_environment,
                                                 std::filesystem::current_path(ignored), binary.parent_path());
    if (!model) return fail(model.error().message);
    config.model = std::move(model).value();
  }
  return hotset::api::serve(config);
}

int run(const std::vector<std::string>& arguments) {
  auto line = hotset::api::parse_command_line(arguments, hotset::api::process_environment);
  if (!line) return fail(line.error().message);
  switch (line.value().command) {
    case hotset::api::Command::kServe: return serve(std::move(line.value().server));
    case hotset::api::Command::kChat:
      return hotset::api::chat(line.value().chat, isatty(STDIN_FILENO) != 0, std::cin, std::cout, std::cerr);
    case hotset::api::Command::kCalibrate: {
      const auto done =
          hotset::api::calibrate(line.value().calibrate, std::cout, std::cerr, isatty(STDERR_FILENO) != 0);
      return done ? 0 : fail(done.error().message);
    }
    case hotset::api::Command::kInspectTrace:
      return hotset::api::inspect_trace(line.value().inspect, std::cout, std::cerr);
    case hotset::api::Command::kReplay: return hotset::api::replay_trace(line.value().replay, std::cout, std::cerr);
    case hotset::api::Command::kVersion: std::cout << "hotset " << hotset::api::kVersion << '\n'; return 0;
    case hotset::api::Command::kHelp: std::cout << line.value().help; return 0;
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Large buffers are reused instead of being mapped and unmapped each time: fresh pages cost more than the work on
  // them.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {  // a broken environment: no memory, no threads
    return fail(error.what());
  }
}
