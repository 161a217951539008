// The endpoints: routing, API key, CORS preflight, and the hand-over to the serving system.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "actors/serving_system.h"
#include "api/http_exchange.h"
#include "api/openai_request.h"
#include "core/clock.h"
#include "core/metrics.h"

namespace hotset::api {

struct ServiceConfig {
  std::string api_key;      // empty: none asked
  std::string model_alias;  // a second name under which the model is accepted (the path it was loaded from)
  std::int64_t max_choices = 1'024;
};

class OpenAiService final : public HttpHandler {
 public:
  // `metrics` and `clock` outlive the service.
  OpenAiService(ServiceConfig config, MetricsRegistry& metrics, const Clock& clock);

  // From then on requests are answered; before that /health says 503 "loading". `system` outlives every call. Any
  // thread.
  void set_system(actors::ServingSystem* system) { system_.store(system); }
  // From then on /health says 503 "draining" and new work is refused. Any thread.
  void begin_drain() { draining_.store(true); }

  std::optional<HttpReply> early(const HttpRequest& head) override;
  void handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;
  [[nodiscard]] bool served_beyond_limit(const HttpRequest& head) const override;

 private:
  [[nodiscard]] bool authorized(const HttpRequest& head) const;
  [[nodiscard]] HttpReply health() const;
  [[nodiscard]] HttpReply models(std::string_view path) const;
  [[nodiscard]] Json model_json() const;
  [[nodiscard]] bool is_served_model(std::string_view name) const;
  // Error when no work is taken now.
  [[nodiscard]] Result<void> ready() const;
  [[nodiscard]] Result<Json> read_body(const HttpRequest& request) const;

  void generate(const Json& body, bool chat, const std::shared_ptr<HttpExchange>& exchange);
  void tokenize(const Json& body, const std::shared_ptr<HttpExchange>& exchange);
  void detokenize(const Json& body, const std::shared_ptr<HttpExchange>& exchange);

  const ServiceConfig config_;
  MetricsRegistry& metrics_;
  const Clock& clock_;
  const std::int64_t started_unix_;
  Counter& generations_;
  Counter& client_gone_;
  std::atomic<actors::ServingSystem*> system_{nullptr};
  std::atomic<bool> draining_{false};
};

}  // namespace hotset::api
