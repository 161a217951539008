#include "api/http_connection.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <new>
#include <utility>

#include "api/openai_error.h"
#include "core/concat.h"
#include "core/log.h"

namespace hotset::api {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t kBufferLimit = 64 << 10;   // bytes read ahead of the parser, pipelined requests included
constexpr std::size_t kHeadReadBytes = 4 << 10;  // small, so that thousands of idle connections stay small
constexpr std::size_t kWriteSlice = 64 << 10;    // the client must take one slice within the timeout
constexpr std::size_t kKeptCapacity = 64 << 10;  // larger write buffers are given back after use
constexpr std::size_t kDiscardLimit = 256ULL
                                      << 20;  // of a refused body, before giving up on the client reading the answer

std::string chunk(std::string_view data) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string size;
  for (std::size_t rest = data.size(); rest != 0; rest >>= 4) size.insert(size.begin(), kHex[rest & 15]);
  return concat(size, "\r\n", data, "\r\n");
}

// Boost's string views differ between its versions.
template <class Text>
std::string_view view(const Text& text) {
  return {text.data(), text.size()};
}

HttpRequest head_of(const http::request_header<>& header) {
  HttpRequest head;
  head.method = view(header.method_string());
  std::string_view target = view(header.target());
  if (const auto scheme = target.find("://"); scheme != std::string_view::npos && !target.starts_with('/')) {
    const auto slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  head.path = std::string(target.substr(0, target.find_first_of("?#")));
  for (const auto& field : header) {
    std::string name(view(field.name_string()));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    head.headers.emplace_back(std::move(name), std::string(view(field.value())));
  }
  return head;
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

}  // namespace

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

ConnectionContext::ConnectionContext(HttpServerConfig server_config, HttpHandler& request_handler,
                                     MetricsRegistry& metrics)
    : config(std::move(server_config)),
      handler(request_handler),
      requests(metrics.counter("hotset_http_requests_total", "HTTP requests received completely or refused")),
      dropped(metrics.counter("hotset_http_dropped_connections_total",
                              "Connections dropped because the client was too slow")),
      open_connections(metrics.gauge("hotset_http_connections", "Open client connections")) {}

Connection::Connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionContext> context, bool beyond_limit)
    : socket_(std::move(socket)),
      owner_(context),
      context_(*context),
      beyond_limit_(beyond_limit),
      buffer_(kBufferLimit) {}

void Connection::start() {
  read_deadline_ = std::chrono::steady_clock::now() + context_.config.request_timeout;
  read();
}

// --- reading
// -----------------------------------------------------------------------------------------------------------

void Connection::read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  const std::size_t room = kBufferLimit - buffer_.size();
  const std::size_t wanted = phase_ == Phase::kReceiving && head_seen_ ? kBufferLimit : kHeadReadBytes;
  if (incoming_.size() != wanted) incoming_ = std::vector<char>(wanted);
  reading_ = true;
  socket_.async_read_some(asio::buffer(incoming_.data(), std::min(wanted, room)),
                          [self = shared_from_this()](error_code error, std::size_t bytes) {
                            self->reading_ = false;
                            if (self->phase_ == Phase::kClosed) return;
                            try {
                              if (error) {
                                self->on_read_failed();
                              } else {
                                self->on_read(bytes);
                              }
                            } catch (const std::bad_alloc&) {
                              self->out_of_memory();
                            }
                          });
}

void Connection::on_read(std::size_t bytes) {
  buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes), asio::buffer(incoming_.data(), bytes)));
  process();
}

// End of the client's side, also a half-close: while an answer is made that means that nobody waits for it. Once the
// answer is queued completely it is still delivered.
void Connection::on_read_failed() {
  if (phase_ == Phase::kAnswering && answer_done_) {
    close_after_ = true;
  } else {
    client_gone();
  }
}

void Connection::process() {
  switch (phase_) {
    case Phase::kIdle:
      if (!skip_empty_lines()) {
        read();
        return;
      }
      if (!parser_) {
        parser_.emplace();
        parser_->header_limit(context_.config.max_header_bytes);
        parser_->body_limit(context_.config.max_body_bytes);
        parser_->eager(false);
        head_seen_ = http10_ = head_only_ = false;
      }
      phase_ = Phase::kReceiving;
      read_deadline_ = std::chrono::steady_clock::now() + context_.config.request_timeout;
      parse();
      return;
    case Phase::kReceiving: parse(); return;
    case Phase::kAnswering:
      // The read stays pending, or a client that leaves would not be noticed; so a client that sends this much ahead of
      // its answer loses the surplus, and with it the connection after the answer.
      if (buffer_.size() == kBufferLimit) {
        close_after_ = true;
        buffer_.consume(buffer_.size());
      }
      read();
      return;
    case Phase::kLingering:
      discarded_ += buffer_.size();
      buffer_.consume(buffer_.size());
      if (discarded_ > kDiscardLimit) {
        close();
      } else {
        read();
      }
      return;
    case Phase::kClosed: return;
  }
}

// Some clients send a line break too many after a body. False: nothing of a request is there yet.
bool Connection::skip_empty_lines() {
  const auto received = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  while (received().starts_with("\r\n")) buffer_.consume(2);
  return !received().empty() && received() != "\r";
}

void Connection::parse() {
  while (!parser_->is_done()) {
    error_code error;
    if (buffer_.size() != 0) {
      buffer_.consume(parser_->put(buffer_.data(), error));
      count_body(parser_->get().body().size());
      const bool full = context_.body_bytes > context_.config.max_bodies * context_.config.max_body_bytes;
      if (full && body_bytes_ > kBufferLimit)  // small ones always have room
        return refuse(503, "Too many large requests are received at once; try again later.");
    } else {
      error = http::error::need_more;
    }
    if (error == http::error::need_more) {
      if (buffer_.size() == kBufferLimit) return refuse(400, "A header or chunk line of the request is too long.");
      return read();
    }
    if (error == http::error::body_limit)
      return refuse(413, "The request body is larger than this server accepts (--max-body).");
    if (error == http::error::header_limit) return refuse(431, "The request headers are too large.");
    if (error == http::error::bad_version) return refuse(505, "This server speaks HTTP/1.1.");
    if (error) return refuse(400, "The request is not valid HTTP.");
    if (parser_->is_header_done() && !head_seen_) {
      head_seen_ = true;
      parser_->eager(true);
      if (!accept_head()) return;
    }
  }
  dispatch();
}

bool Connection::accept_head() {
  head_ = head_of(parser_->get().base());
  http10_ = parser_->get().version() < 11;
  close_after_ = !parser_->keep_alive() || beyond_limit_ || context_.draining;
  head_only_ = head_.method == "HEAD";
  const auto hosts = std::count_if(head_.headers.begin(), head_.headers.end(),
                                   [](const auto& field) { return field.first == "host"; });
  if (hosts > 1 || (hosts == 0 && !http10_)) {
    refuse(400, "An HTTP/1.1 request has exactly one Host header.");
    return false;
  }
  const auto transfer = head_.header("transfer-encoding");
  if (!transfer.empty() && (http10_ || !same_ignoring_case(transfer, "chunked"))) {
    refuse(400, "The only transfer encoding that this server reads is 'chunked', in HTTP/1.1.");
    return false;
  }
  const auto encoding = head_.header("content-encoding");
  if (!encoding.empty() && !same_ignoring_case(encoding, "identity")) {
    refuse(415, "Compressed request bodies are not supported.");
    return false;
  }
  if (beyond_limit_ && !context_.handler.served_beyond_limit(head_)) {
    refuse(503, "The server has reached its connection limit (--max-connections); try again later.");
    return false;
  }
  if (auto answer = context_.handler.early(head_)) {
    answer_early(*answer);
    return false;
  }
  const auto expect = head_.header("expect");
  if (!expect.empty() && !same_ignoring_case(expect, "100-continue")) {
    refuse(417, "The only expectation that this server meets is '100-continue'.");
    return false;
  }
  if (!expect.empty() && !http10_ && !parser_->is_done() && buffer_.size() == 0) send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::answer_early(const HttpReply& answer) {
  if (!parser_->is_done()) close_after_ = true;  // the body stays unread
  phase_ = Phase::kAnswering;
  set_busy(true);
  context_.requests.add();
  write_reply(answer);
  process();
}

// In the middle of a request: its own failure. Else the connection can only be closed.
void Connection::out_of_memory() {
  const bool receiving = phase_ == Phase::kReceiving;
  parser_.reset();
  if (!receiving) return client_gone();
  refuse(503, "There is not enough memory to receive this request; try again later.");
}

void Connection::count_body(std::size_t bytes) {
  context_.body_bytes += bytes;
  context_.body_bytes -= std::exchange(body_bytes_, bytes);
}

void Connection::refuse(int status, std::string_view message) {
  close_after_ = true;
  phase_ = Phase::kAnswering;
  set_busy(true);
  context_.requests.add();
  write_reply(protocol_error(status, message));
  process();
}

void Connection::dispatch() {
  phase_ = Phase::kAnswering;
  set_busy(true);
  context_.requests.add();
  head_.body = std::move(parser_->get().body());
  exchange_ = std::make_shared<ConnectionExchange>(owner_, weak_from_this());
  asio::post(
      context_.service, [&handler = context_.handler, request = std::move(head_), exchange = exchange_]() mutable {
        try {
          handler.handle(std::move(request), exchange);
        } catch (
            const std::exception& error) {  // out of memory for one request, or our bug: not a reason to end the others
          log_error("A request failed inside the server: ", error.what());
          exchange->reply(protocol_error(500, "The server failed to process this request."));
        }
      });
  process();
}

// --- writing
// -----------------------------------------------------------------------------------------------------------

bool Connection::answers(const ConnectionExchange* exchange) const {
  return exchange_.get() == exchange && phase_ == Phase::kAnswering && !answer_done_;
}

void Connection::reply(const ConnectionExchange* exchange, const HttpReply& answer) {
  if (answers(exchange) && !streaming_) write_reply(answer);
}

namespace {
std::string status_line(int status) {
  return concat("HTTP/1.1 ", status, " ", view(http::obsolete_reason(static_cast<http::status>(status))), "\r\n");
}
constexpr std::string_view kCommonHeaders =
    "server: hotset\r\n"
    "access-control-allow-origin: *\r\n";
}  // namespace

void Connection::write_reply(const HttpReply& answer) {
  count_body(0);
  if (context_.draining) close_after_ = true;
  std::string head = status_line(answer.status);
  head += kCommonHeaders;
  if (answer.status != 204)
    head += concat("content-type: ", answer.content_type, "\r\ncontent-length: ", answer.body.size(), "\r\n");
  for (const auto& [name, value] : answer.headers) head += concat(name, ": ", value, "\r\n");
  head += close_after_ ? "connection: close\r\n\r\n" : "connection: keep-alive\r\n\r\n";
  answer_done_ = true;
  queued_ += head;
  if (!head_only_) queued_ += answer.body;
  flush();
}

void Connection::start_events(const ConnectionExchange* exchange) {
  if (!answers(exchange) || streaming_) return;
  count_body(0);
  streaming_ = true;
  if (http10_ || context_.draining) close_after_ = true;
  std::string head = status_line(200);
  head += kCommonHeaders;
  head += "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n";
  if (!http10_) head += "transfer-encoding: chunked\r\n";
  head += close_after_ ? "connection: close\r\n\r\n" : "connection: keep-alive\r\n\r\n";
  sent_ = unsent();
  sent_long_ago_ = sent_by_mark_ = 0;
  mark_ = std::chrono::steady_clock::now();
  send(head);
}

void Connection::send_event(const ConnectionExchange* exchange, const std::string& data) {
  if (!answers(exchange) || !streaming_) return;
  if (reads_too_slowly()) {
    context_.dropped.add();
    client_gone();
    return;
  }
  const std::string frame = concat("data: ", data, "\n\n");
  send(http10_ ? frame : chunk(frame));
}

void Connection::finish_events(const ConnectionExchange* exchange, bool keep_connection) {
  if (!answers(exchange) || !streaming_) return;
  if (!keep_connection || context_.draining) close_after_ = true;
  answer_done_ = true;
  if (!http10_) queued_ += "0\r\n\r\n";
  flush();
}

std::size_t Connection::unsent() const { return queued_.size() + writing_.size() - written_; }

// Of a stream. One event may be larger than what may stay unread, and several may come at once: only what the client
// has had time to read counts.
bool Connection::reads_too_slowly() {
  const auto now = std::chrono::steady_clock::now();
  if (now - mark_ >= context_.config.time_to_read) {
    sent_long_ago_ = std::exchange(sent_by_mark_, sent_);
    mark_ = now;
  }
  return sent_long_ago_ + unsent() > sent_ + context_.config.max_unread_bytes;
}

void Connection::send(std::string_view bytes) {
  queued_ += bytes;
  sent_ += bytes.size();
  last_output_ = std::chrono::steady_clock::now();
  flush();
}

void Connection::flush() {
  if (write_pending_ || phase_ == Phase::kClosed) return;
  if (written_ == writing_.size()) {
    writing_.clear();
    if (writing_.capacity() > kKeptCapacity) writing_.shrink_to_fit();
    written_ = 0;
    writing_.swap(queued_);
  }
  if (writing_.empty()) return on_flushed();
  write_pending_ = true;
  write_deadline_ = std::chrono::steady_clock::now() + context_.config.request_timeout;
  const auto slice = asio::buffer(writing_.data() + written_, std::min(kWriteSlice, writing_.size() - written_));
  socket_.async_write_some(slice, [self = shared_from_this()](error_code error, std::size_t bytes) {
    self->write_pending_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (error) return self->client_gone();
    self->written_ += bytes;
    self->flush();
  });
}

void Connection::on_flushed() {
  if (phase_ != Phase::kAnswering || !answer_done_) return;
  if (exchange_) exchange_->end(false);
  exchange_.reset();
  set_busy(false);
  if (close_after_ || context_.draining) return linger();
  phase_ = Phase::kIdle;
  answer_done_ = streaming_ = false;
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  const auto now = std::chrono::steady_clock::now();
  read_deadline_ = now + (buffer_.size() != 0 ? context_.config.request_timeout : context_.config.idle_timeout);
  // Posted, so that a long pipeline of quick answers does not become a deep recursion.
  asio::post(context_.io, [self = shared_from_this()] { self->process(); });
}

// --- end
// ---------------------------------------------------------------------------------------------------------------

// Closing with unread input would reset the connection and could take the answer away from the client; so the client is
// told that nothing more comes and gets a moment to read.
void Connection::linger() {
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  phase_ = Phase::kLingering;
  read_deadline_ = std::chrono::steady_clock::now() + context_.config.linger_timeout;
  process();
}

void Connection::client_gone() {
  if (exchange_) exchange_->end(true);
  exchange_.reset();
  close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  count_body(0);
  if (exchange_) exchange_->end(true);
  exchange_.reset();
  set_busy(false);
  error_code ignored;
  socket_.close(ignored);
  context_.connections.erase(shared_from_this());
  context_.open_connections.set(static_cast<double>(context_.connections.size()));
}

void Connection::set_busy(bool busy) {
  if (busy == busy_) return;
  busy_ = busy;
  context_.busy += busy ? 1 : -1;
}

void Connection::drain() {
  if (phase_ == Phase::kIdle && buffer_.size() == 0) close();
}

void Connection::check(SteadyTime now) {
  if (write_pending_ && now > write_deadline_) {
    context_.dropped.add();
    return client_gone();
  }
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kLingering:
      if (now > read_deadline_) close();
      return;
    case Phase::kReceiving:
      if (now <= read_deadline_) return;
      context_.dropped.add();
      return refuse(408, "The request did not arrive in time.");
    case Phase::kAnswering:
      if (streaming_ && !answer_done_ && context_.config.comment_interval.count() > 0 &&
          now - last_output_ > context_.config.comment_interval && unsent() == 0) {
        send(http10_ ? ": waiting\n\n" : chunk(": waiting\n\n"));
      }
      return;
    case Phase::kClosed: return;
  }
}

// --- exchange
// ----------------------------------------------------------------------------------------------------------

ConnectionExchange::ConnectionExchange(std::weak_ptr<ConnectionContext> context, std::weak_ptr<Connection> connection)
    : context_(std::move(context)), connection_(std::move(connection)) {}

template <class Action>
void ConnectionExchange::on_connection(Action action) {
  const auto context = context_.lock();
  if (!context) return;
  asio::dispatch(context->io, [self = shared_from_this(), action = std::move(action)]() mutable {
    if (const auto connection = self->connection_.lock()) action(*connection, self.get());
  });
}

void ConnectionExchange::reply(HttpReply reply) {
  on_connection([reply = std::move(reply)](Connection& connection, auto* self) { connection.reply(self, reply); });
}
void ConnectionExchange::start_events() {
  on_connection([](Connection& connection, auto* self) { connection.start_events(self); });
}
void ConnectionExchange::send_event(std::string_view data) {
  on_connection([data = std::string(data)](Connection& connection, auto* self) { connection.send_event(self, data); });
}
void ConnectionExchange::finish_events(bool keep_connection) {
  on_connection(
      [keep_connection](Connection& connection, auto* self) { connection.finish_events(self, keep_connection); });
}

void ConnectionExchange::on_client_gone(std::function<void()> callback) {
  const auto context = context_.lock();
  if (!context) return;
  asio::dispatch(context->io, [self = shared_from_this(), callback = std::move(callback)]() mutable {
    if (self->gone_) {
      self->post(std::move(callback));
    } else if (!self->ended_) {
      self->gone_callback_ = std::move(callback);
    }
  });
}

void ConnectionExchange::post(std::function<void()> task) {
  if (const auto context = context_.lock()) asio::post(context->service, std::move(task));
}

void ConnectionExchange::end(bool client_gone) {
  if (ended_) return;
  ended_ = true;
  gone_ = client_gone;
  if (client_gone && gone_callback_) post(std::move(gone_callback_));
  gone_callback_ = nullptr;
}

}  // namespace hotset::api
