#include "api/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <thread>
#include <vector>

#include "api/http_connection.h"
#include "core/concat.h"
#include "core/log.h"

namespace hotset::api {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kListenBacklog = 4096;
constexpr std::int64_t kConnectionsBeyondLimit = 64;  // they get health checks or a 503 instead of silence
constexpr std::chrono::milliseconds kAcceptRetry{100};
constexpr std::string_view kTooManyConnections =
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    R"({"error":{"message":"The server has reached its connection limit.","type":"server_error","param":null,"code":null}})";

std::string address_text(const tcp::endpoint& endpoint) {
  const std::string ip = endpoint.address().to_string();
  return endpoint.address().is_v6() ? concat("[", ip, "]:", endpoint.port()) : concat(ip, ":", endpoint.port());
}

std::chrono::milliseconds check_interval(const HttpServerConfig& config) {
  auto shortest = std::min({config.request_timeout, config.idle_timeout, config.linger_timeout});
  if (config.comment_interval.count() > 0) shortest = std::min(shortest, config.comment_interval);
  return std::clamp(shortest / 4, std::chrono::milliseconds(20), std::chrono::milliseconds(500));
}

// Until nothing is left to do. What one handler throws (no memory, most likely) ends that piece of work, not the
// others; the connection that it belonged to runs into its deadlines.
void run(asio::io_context& context) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& error) {
      log_error("A connection failed inside the server: ", error.what());
    }
  }
}

}  // namespace

struct HttpServer::State {
  State(const HttpServerConfig& config, HttpHandler& handler, MetricsRegistry& metrics)
      : context(std::make_shared<ConnectionContext>(config, handler, metrics)),
        acceptor(context->io),
        check_timer(context->io),
        accept_timer(context->io),
        keep_io(context->io.get_executor()),
        keep_service(context->service.get_executor()) {}

  Result<void> listen();
  void accept();
  void on_accept(tcp::socket socket);
  void schedule_checks();
  void stop();

  std::shared_ptr<ConnectionContext> context;
  tcp::acceptor acceptor;
  asio::steady_timer check_timer;
  asio::steady_timer accept_timer;
  asio::executor_work_guard<asio::io_context::executor_type> keep_io;
  asio::executor_work_guard<asio::io_context::executor_type> keep_service;
  bool stopping = false;       // I/O thread
  bool accept_failed = false;  // I/O thread: the last time
  std::promise<void> closed;
  std::string address;
  std::uint16_t port = 0;
  std::thread io_thread;
  std::thread service_thread;
};

Result<void> HttpServer::State::listen() {
  const auto& config = context->config;
  error_code error;
  tcp::resolver resolver(context->io);
  const auto found = resolver.resolve(config.host, std::to_string(config.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) return invalid_argument(concat("Host '", config.host, "' can't be resolved."), "--host");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kListenBacklog, error);
  if (error == asio::error::address_in_use) {
    return Error{ErrorCode::kUnavailable,
                 concat("Another program listens on ", address_text(endpoint), " already; choose another --port."),
                 "--port"};
  }
  if (error) {
    return Error{ErrorCode::kUnavailable,
                 concat("Can't listen on ", address_text(endpoint), ": ", error.message(), "."), "--port"};
  }
  port = acceptor.local_endpoint().port();
  address = address_text(acceptor.local_endpoint());
  return {};
}

void HttpServer::State::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (stopping) return;
    if (!error) {
      accept_failed = false;
      accept();  // before anything that may lack memory: the next one is waited for in any case
      return on_accept(std::move(socket));
    }
    // Out of descriptors, most likely: the waiting client stays in the backlog. Told once, until one is accepted.
    if (!std::exchange(accept_failed, true)) log_warn("A connection could not be accepted: ", error.message());
    accept_timer.expires_after(kAcceptRetry);
    accept_timer.async_wait([this](error_code timer_error) {
      if (!timer_error && !stopping) accept();
    });
  });
}

void HttpServer::State::on_accept(tcp::socket socket) {
  const auto open = static_cast<std::int64_t>(context->connections.size());
  error_code ignored;
  if (open >= context->config.max_connections + kConnectionsBeyondLimit) {
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kTooManyConnections), ignored);
    return;
  }
  socket.set_option(tcp::no_delay(true), ignored);
  auto connection = std::make_shared<Connection>(std::move(socket), context, open >= context->config.max_connections);
  context->connections.insert(connection);
  context->open_connections.set(static_cast<double>(context->connections.size()));
  connection->start();
}

void HttpServer::State::schedule_checks() {
  check_timer.expires_after(check_interval(context->config));
  check_timer.async_wait([this](error_code error) {
    if (error || stopping) return;
    schedule_checks();
    const auto now = std::chrono::steady_clock::now();
    // A copy: a connection that closes leaves the set.
    const std::vector<std::shared_ptr<Connection>> all(context->connections.begin(), context->connections.end());
    for (const auto& connection : all) connection->check(now);
  });
}

// Both threads run until nothing is left to do, so that a handler learns of every client that is closed here.
void HttpServer::State::stop() {
  asio::post(context->io, [this] {
    stopping = true;
    error_code ignored;
    acceptor.close(ignored);
    check_timer.cancel();
    accept_timer.cancel();
    const std::vector<std::shared_ptr<Connection>> all(context->connections.begin(), context->connections.end());
    for (const auto& connection : all) connection->close();
    closed.set_value();
  });
  closed.get_future().wait();
  keep_service.reset();
  service_thread.join();
  keep_io.reset();
  io_thread.join();
  context->service.restart();
  context->service.poll();  // what the I/O thread left at its end
}

HttpServer::HttpServer(std::shared_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() { state_->stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerConfig& config, HttpHandler& handler,
                                                      MetricsRegistry& metrics) {
  auto state = std::make_shared<State>(config, handler, metrics);
  if (const auto listening = state->listen(); !listening) return listening.error();
  state->accept();
  state->schedule_checks();
  state->io_thread = std::thread([raw = state.get()] { run(raw->context->io); });
  state->service_thread = std::thread([raw = state.get()] { run(raw->context->service); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

std::uint16_t HttpServer::port() const { return state_->port; }
const std::string& HttpServer::address() const { return state_->address; }

void HttpServer::begin_drain() {
  asio::post(state_->context->io, [context = state_->context.get()] {
    context->draining = true;
    const std::vector<std::shared_ptr<Connection>> all(context->connections.begin(), context->connections.end());
    for (const auto& connection : all) connection->drain();
  });
}

bool HttpServer::wait_idle(std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  // Nothing signals the last byte; ends of a shutdown are rare, so looking every few milliseconds costs nothing.
  while (state_->context->busy.load() != 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace hotset::api
