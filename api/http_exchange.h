// One HTTP request and the way to answer it, without any network library in sight. The transport (http_server) calls an
// HttpHandler; the handler answers through an HttpExchange.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotset::api {

struct HttpRequest {
  std::string method;  // as sent, case-sensitive
  std::string path;    // without query; still percent-encoded
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // empty in HttpHandler::early

  // Value of the first header of that name (given in lower case); empty when absent.
  [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // further ones; values without line breaks
};

// The answer side of one request. Every function may be called from any thread and none blocks. Once the answer ended,
// the client is gone or the server was destroyed, calls do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // The whole answer.
  virtual void reply(HttpReply reply) = 0;

  // Or a stream of server-sent events: start, any number of data events (`data` without line breaks), finish. While a
  // stream is silent the transport sends comments. `keep_connection` false closes after the last event (an error ended
  // it).
  virtual void start_events() = 0;
  virtual void send_event(std::string_view data) = 0;
  virtual void finish_events(bool keep_connection) = 0;

  // `callback` runs once, on the service thread, when the client went away (or was dropped because it reads nothing)
  // before the answer was complete. It runs at once when that has happened already.
  virtual void on_client_gone(std::function<void()> callback) = 0;

  // Runs `task` on the service thread, in the order of the calls.
  virtual void post(std::function<void()> task) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Called on the I/O thread when the head of a request has arrived: must be quick. An answer here is sent without
  // reading the body; nullopt: read the body, then call handle().
  virtual std::optional<HttpReply> early(const HttpRequest& head) = 0;

  // Called on the service thread, where parsing and formatting of any size may be done. The exchange must be answered
  // eventually; until then the connection waits.
  virtual void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;

  // Whether a connection beyond the limit may still ask for this path (health checks under overload).
  [[nodiscard]] virtual bool served_beyond_limit(const HttpRequest& head) const = 0;
};

}  // namespace hotset::api
