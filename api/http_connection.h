// One client connection of the HTTP server: reads requests one after the other, keeps one read pending while an answer
// is made (that is how a client that left is noticed), and writes with bounded buffers. I/O thread only, except
// HttpExchange.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>  // Boost 1.74's awaitable.hpp needs std::exchange and does not include it
#include <vector>

#include "api/growing_body.h"
#include "api/http_server.h"

namespace hotset::api {

using SteadyTime = std::chrono::steady_clock::time_point;

class Connection;
class ConnectionExchange;

// What connections share. The I/O thread owns `connections`, `draining` and `body_bytes`.
struct ConnectionContext {
  ConnectionContext(HttpServerConfig server_config, HttpHandler& request_handler, MetricsRegistry& metrics);

  const HttpServerConfig config;
  HttpHandler& handler;
  boost::asio::io_context io{1};
  boost::asio::io_context service{1};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool draining = false;
  std::uint64_t body_bytes = 0;       // of requests that are received or wait for the first word of their answer
  std::atomic<std::int64_t> busy{0};  // connections with an open request or unsent output
  Counter& requests;
  Counter& dropped;
  Gauge& open_connections;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `beyond_limit`: answers only what HttpHandler::served_beyond_limit allows, then closes.
  Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<ConnectionContext> context, bool beyond_limit);

  void start();
  // Deadlines, and comments in silent streams.
  void check(SteadyTime now);
  // Closes when idle, else after the current answer.
  void drain();
  void close();

  // For ConnectionExchange: ignored unless `exchange` is the request that is being answered.
  void reply(const ConnectionExchange* exchange, const HttpReply& reply);
  void start_events(const ConnectionExchange* exchange);
  void send_event(const ConnectionExchange* exchange, const std::string& data);
  void finish_events(const ConnectionExchange* exchange, bool keep_connection);

 private:
  enum class Phase { kIdle, kReceiving, kAnswering, kLingering, kClosed };

  void read();
  void on_read(std::size_t bytes);
  void on_read_failed();
  void process();
  [[nodiscard]] bool skip_empty_lines();
  void parse();
  bool accept_head();  // false: the request was answered already
  void dispatch();
  void refuse(int status, std::string_view message);
  void out_of_memory();
  void count_body(std::size_t bytes);
  void answer_early(const HttpReply& reply);

  void linger();
  void client_gone();
  void set_busy(bool busy);

  // http_connection_answer.cpp:
  void write_reply(const HttpReply& reply);
  void send_in_stream(std::string_view text);
  void send(std::string_view bytes);
  void flush();
  void on_flushed();
  [[nodiscard]] bool answers(const ConnectionExchange* exchange) const;
  [[nodiscard]] std::size_t unsent() const;
  [[nodiscard]] bool reads_too_slowly();

  boost::asio::ip::tcp::socket socket_;
  std::weak_ptr<ConnectionContext> owner_;  // handed to exchanges
  ConnectionContext& context_;              // outlives every handler of its io_context
  const bool beyond_limit_;

  std::vector<char> incoming_;        // where the pending read writes
  boost::beast::flat_buffer buffer_;  // received, not yet parsed
  std::optional<boost::beast::http::request_parser<GrowingBody>> parser_;
  HttpRequest head_;
  std::size_t body_bytes_ = 0;  // counted in the context
  bool head_seen_ = false;
  std::shared_ptr<ConnectionExchange> exchange_;

  Phase phase_ = Phase::kIdle;
  bool reading_ = false;
  bool busy_ = false;
  bool http10_ = false;
  bool head_only_ = false;  // HEAD: no body in the answer
  bool streaming_ = false;
  bool answer_done_ = false;  // the whole answer is queued
  bool close_after_ = false;  // close when the answer is sent
  std::size_t discarded_ = 0;

  std::string queued_;
  std::string writing_;
  std::size_t written_ = 0;
  bool write_pending_ = false;

  // Bytes of a stream that were queued, in all; by a moment at least time_to_read ago; by the next such moment.
  std::uint64_t sent_ = 0, sent_long_ago_ = 0, sent_by_mark_ = 0;
  SteadyTime mark_{};

  SteadyTime read_deadline_{};
  SteadyTime write_deadline_{};
  SteadyTime last_output_{};
};

// The handler's side of one request; hops to the I/O thread.
class ConnectionExchange final : public HttpExchange, public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(std::weak_ptr<ConnectionContext> context, std::weak_ptr<Connection> connection);

  void reply(HttpReply reply) override;
  void start_events() override;
  void send_event(std::string_view data) override;
  void finish_events(bool keep_connection) override;
  void on_client_gone(std::function<void()> callback) override;
  void post(std::function<void()> task) override;

  // I/O thread: the answer is complete or the client left.
  void end(bool client_gone);

 private:
  template <class Action>
  void on_connection(Action action);

  std::weak_ptr<ConnectionContext> context_;
  std::weak_ptr<Connection> connection_;
  bool ended_ = false;
  bool gone_ = false;
  std::function<void()> gone_callback_;
};

}  // namespace hotset::api
