// The HTTP/1.1 transport: one I/O thread moves bytes, one service thread runs the handler. It bounds everything that a
// client can make it hold: head, body, time to send a request, unread output, number of connections.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "api/http_exchange.h"
#include "core/metrics.h"
#include "core/result.h"

namespace hotset::api {

struct HttpServerConfig {
  std::string host = "127.0.0.1";  // name or address
  std::uint16_t port = 0;          // 0: any free one
  std::int64_t max_connections = 4096;
  std::uint64_t max_body_bytes = 64 << 20;
  std::uint64_t max_bodies = 16;  // as much as so many of the largest: of all requests that are received; more get 503
  std::uint32_t max_header_bytes = 16 << 10;
  std::size_t max_unread_bytes = 4 << 20;              // output of a stream that the client has had time to take
  std::chrono::milliseconds time_to_read{1'000};       // that much of it
  std::chrono::milliseconds request_timeout{30'000};   // to receive a whole request; for the client to take some output
  std::chrono::milliseconds idle_timeout{120'000};     // keep-alive without a request
  std::chrono::milliseconds linger_timeout{2'000};     // after a closing answer, to let the client read it
  std::chrono::milliseconds comment_interval{15'000};  // SSE comment in a silent stream; 0: never
};

// Owner: serve_command (or a test). All functions may be called from any one thread.
class HttpServer {
 public:
  // Binds and listens; errors name the address and what to do. `handler` and `metrics` outlive the server.
  static Result<std::unique_ptr<HttpServer>> start(const HttpServerConfig& config, HttpHandler& handler,
                                                   MetricsRegistry& metrics);
  // Stops at once: open connections are closed, both threads joined.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] const std::string& address() const;  // "127.0.0.1:8080", "[::1]:8080"

  // From now on idle connections are closed and every answer closes its connection. New connections are still taken, so
  // that health checks learn why work is refused.
  void begin_drain();

  // True when no request is open and no output unsent; waits for that until the deadline.
  bool wait_idle(std::chrono::milliseconds deadline);

 private:
  struct State;
  explicit HttpServer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace hotset::api
