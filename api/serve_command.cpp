#include "api/serve_command.h"

#include <algorithm>
#include <thread>

#include "actors/serving_system.h"
#include "api/http_server.h"
#include "api/openai_service.h"
#include "api/process_limits.h"
#include "api/server_options.h"
#include "api/signal_watcher.h"
#include "api/version.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/metrics.h"

namespace hotset::api {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFlushTime{2'000};  // for the last bytes of answers that are complete
constexpr milliseconds kHangTime{5'000};   // after the drain time; an end that takes longer is cut
constexpr std::int64_t kMostChoices = 1'024;

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

// The actor system's workers and its own, the actors that have one, HTTP, signals, and the ones that compute.
std::int64_t thread_count(const ServerConfig& config) {
  const std::int64_t processors = std::max(1U, std::thread::hardware_concurrency());
  return 16 + std::max<std::int64_t>(4, processors) + (config.threads > 0 ? config.threads : processors);
}

HttpServerConfig http_config(const ServerConfig& config, std::int64_t max_connections) {
  HttpServerConfig http;
  http.host = config.host;
  http.port = config.port;
  http.max_connections = max_connections;
  http.max_body_bytes = static_cast<std::uint64_t>(config.max_body_bytes);
  http.request_timeout = milliseconds(config.request_timeout_ms);
  http.comment_interval = milliseconds(config.keepalive_comment_ms);
  return http;
}

}  // namespace

int serve(const ServerConfig& config) {
  SignalWatcher signals(milliseconds(config.drain_timeout_ms) + kHangTime);
  settle_signals();
  set_log_level(log_level(config.log_level));
  const auto connections = connections_under_file_limit(config.max_connections);
  if (!connections) {
    log_error(connections.error().message);
    return 1;
  }
  if (const auto threads = check_threads(thread_count(config)); !threads) {
    log_error(threads.error().message);
    return 1;
  }

  MetricsRegistry metrics;
  const SystemClock clock;
  OpenAiService service(
      {.api_key = config.api_key, .model_alias = config.model, .max_choices = std::min(kMostChoices, config.max_queue)},
      metrics, clock);
  // Listening comes first: a taken port is known before a long load, and health checks are answered meanwhile.
  auto listening = HttpServer::start(http_config(config, connections.value()), service, metrics);
  if (!listening) {
    log_error(listening.error().message);
    return 1;
  }
  auto server = std::move(listening).value();
  log_info("Hotset ", kVersion, " listens on http://", server->address(), " and loads ", config.model);

  auto started = actors::ServingSystem::start(config, metrics);
  if (!started) {
    log_error(started.error().message);
    return 1;
  }
  const auto system = std::move(started).value();
  log_info("Serving ", system->info().summary);
  service.set_system(system.get());
  log_info("Ready: http://", server->address(), "/v1");

  const int signal = signals.wait();
  log_info("Signal ", signal, ": no new requests; running ones get up to ", config.drain_timeout_ms, " ms.");
  service.begin_drain();
  server->begin_drain();
  system->stop(milliseconds(config.drain_timeout_ms));
  if (!server->wait_idle(kFlushTime)) log_warn("Some clients did not take the end of their answers.");
  server.reset();  // before the system, which its last callbacks use
  log_info("Stopped.");
  return 0;
}

}  // namespace hotset::api
