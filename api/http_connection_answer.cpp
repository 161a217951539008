// The answering side of a connection: whole answers and event streams, written with bounded buffers, and the exchange
// through which the handler reaches them.
#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <utility>

#include "api/http_connection.h"
#include "core/concat.h"

namespace hotset::api {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t kWriteSlice = 64 << 10;    // the client must take one slice within the timeout
constexpr std::size_t kKeptCapacity = 64 << 10;  // larger write buffers are given back after use

constexpr std::string_view kCommonHeaders =
    "server: hotset\r\n"
    "access-control-allow-origin: *\r\n";

std::string status_line(int status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return concat("HTTP/1.1 ", status, " ", std::string_view(reason.data(), reason.size()), "\r\n");
}

std::string chunk(std::string_view data) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string size;
  for (std::size_t rest = data.size(); rest != 0; rest >>= 4) size.insert(size.begin(), kHex[rest & 15]);
  return concat(size, "\r\n", data, "\r\n");
}

}  // namespace

bool Connection::answers(const ConnectionExchange* exchange) const {
  return exchange_.get() == exchange && phase_ == Phase::kAnswering && !answer_done_;
}

void Connection::reply(const ConnectionExchange* exchange, const HttpReply& answer) {
  if (answers(exchange) && !streaming_) write_reply(answer);
}

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
  send_in_stream(concat("data: ", data, "\n\n"));
}

void Connection::send_in_stream(std::string_view text) {
  if (http10_) {
    send(text);
  } else {
    send(chunk(text));
  }
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

// The exchange.

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
