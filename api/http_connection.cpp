#include "api/http_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <new>
#include <utility>

#include "api/openai_error.h"
#include "core/log.h"

namespace hotset::api {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t kBufferLimit = 64 << 10;   // bytes read ahead of the parser, pipelined requests included
constexpr std::size_t kHeadReadBytes = 4 << 10;  // small, so that thousands of idle connections stay small
constexpr std::size_t kDiscardLimit = 256ULL
                                      << 20;  // of a refused body, before giving up on the client reading the answer

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

// Reading.

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

// The end, and what the time brings.

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
        send_in_stream(": waiting\n\n");
      }
      return;
    case Phase::kClosed: return;
  }
}

}  // namespace hotset::api
