#include "api/openai_service.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "api/openai_error.h"
#include "api/openai_generation.h"
#include "api/version.h"
#include "core/concat.h"

namespace hotset::api {
namespace {

enum class Access { kOpen, kWithKey };

struct Route {
  std::string_view path;
  std::string_view method;  // GET routes answer HEAD too
  Access access;
};

constexpr std::array<Route, 8> kRoutes = {{
    {"/health", "GET", Access::kOpen},
    {"/metrics", "GET", Access::kOpen},
    {"/version", "GET", Access::kOpen},
    {"/v1/models", "GET", Access::kWithKey},
    {"/v1/completions", "POST", Access::kWithKey},
    {"/v1/chat/completions", "POST", Access::kWithKey},
    {"/tokenize", "POST", Access::kWithKey},
    {"/detokenize", "POST", Access::kWithKey},
}};
constexpr std::string_view kModelPrefix = "/v1/models/";

const Route* find_route(std::string_view path) {
  if (path.starts_with(kModelPrefix)) path = "/v1/models";
  const auto* found = std::find_if(kRoutes.begin(), kRoutes.end(), [path](const Route& r) { return r.path == path; });
  return found == kRoutes.end() ? nullptr : found;
}

// Its time depends on the length of what was given, not on where it differs.
bool equal_in_constant_time(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected[i % expected.size()]);
  }
  return difference == 0;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at]));
    };
    if (text[i] == '%' && digit(i + 1) && digit(i + 2)) {
      out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

HttpReply preflight(const HttpRequest& head) {
  const auto asked = head.header("access-control-request-headers");
  const std::string allowed(asked.empty() ? "authorization, content-type" : asked);
  return HttpReply{.status = 204,
                   .body = {},
                   .headers = {{"access-control-allow-methods", "GET, HEAD, POST, OPTIONS"},
                               {"access-control-allow-headers", allowed},
                               {"access-control-max-age", "86400"}}};
}

HttpReply json_reply(int status, const Json& json) {
  return HttpReply{.status = status, .body = to_text(json), .headers = {}};
}

Error unavailable(std::string message) { return Error{ErrorCode::kUnavailable, std::move(message), {}}; }

HttpReply model_not_found() {
  return HttpReply{
      .status = 404,
      .body = error_body("This server does not serve the requested model; GET /v1/models names the one it serves.",
                         "invalid_request_error", "model", "model_not_found"),
      .headers = {}};
}

}  // namespace

OpenAiService::OpenAiService(ServiceConfig config, MetricsRegistry& metrics, const Clock& clock)
    : config_(std::move(config)),
      metrics_(metrics),
      clock_(clock),
      started_unix_(clock.unix_seconds()),
      generations_(metrics.counter("hotset_generations_total", "Generation requests handed to the engine")),
      client_gone_(
          metrics.counter("hotset_client_gone_total", "Generation requests cancelled because the client left")) {}

bool OpenAiService::authorized(const HttpRequest& head) const {
  if (config_.api_key.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  auto given = head.header("authorization");
  const bool bearer = given.size() > kScheme.size() &&
                      std::equal(kScheme.begin(), kScheme.end(), given.begin(),
                                 [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
  if (!bearer) return false;
  given.remove_prefix(kScheme.size());
  while (given.starts_with(' ')) given.remove_prefix(1);
  return equal_in_constant_time(given, config_.api_key);
}

bool OpenAiService::served_beyond_limit(const HttpRequest& head) const {
  const Route* route = find_route(head.path);
  return route != nullptr && route->access == Access::kOpen;
}

std::optional<HttpReply> OpenAiService::early(const HttpRequest& head) {
  if (head.method == "OPTIONS") return preflight(head);
  const Route* route = find_route(head.path);
  const bool open = route != nullptr && route->access == Access::kOpen;
  if (!open && !authorized(head)) {
    auto reply =
        protocol_error(401, "This server needs its API key: send 'Authorization: Bearer KEY'.", "invalid_api_key");
    reply.headers.emplace_back("www-authenticate", "Bearer");
    return reply;
  }
  if (route == nullptr) return protocol_error(404, "There is no such endpoint.", "not_found");
  const bool get = head.method == "GET" || head.method == "HEAD";
  if (route->method == "GET" ? !get : head.method != route->method) {
    auto reply = protocol_error(405, "This endpoint does not support this method.", "method_not_allowed");
    reply.headers.emplace_back("allow", route->method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
    return reply;
  }
  if (route->path == "/health") return health();
  if (route->path == "/version") return json_reply(200, {{"version", kVersion}});
  if (route->path == "/metrics") {
    return HttpReply{
        .body = metrics_.text(), .content_type = "text/plain; version=0.0.4; charset=utf-8", .headers = {}};
  }
  if (route->path == "/v1/models") return models(head.path);
  if (const auto open_for_work = ready(); !open_for_work) return error_reply(open_for_work.error());
  return std::nullopt;
}

HttpReply OpenAiService::health() const {
  const auto* system = system_.load();
  const auto report = system == nullptr ? actors::HealthReport{} : system->health();
  const bool draining = draining_.load() || report.state == actors::HealthState::kDraining;
  if (draining) return json_reply(503, {{"status", "draining"}});
  switch (report.state) {
    case actors::HealthState::kReady: return json_reply(200, {{"status", "ok"}});
    case actors::HealthState::kLoading: return json_reply(503, {{"status", "loading"}});
    case actors::HealthState::kDegraded: return json_reply(503, {{"status", "degraded"}, {"reason", report.reason}});
    default: return json_reply(503, {{"status", "unhealthy"}, {"reason", report.reason}});
  }
}

Result<void> OpenAiService::ready() const {
  if (draining_.load()) return unavailable("The server is shutting down.");
  if (system_.load() == nullptr) return unavailable("The model is still being loaded.");
  return {};
}

Json OpenAiService::model_json() const {
  const auto& info = system_.load()->info();
  return {{"id", info.model_name},   {"object", "model"}, {"created", started_unix_},         {"owned_by", "hotset"},
          {"root", info.model_name}, {"parent", nullptr}, {"max_model_len", info.max_context}};
}

bool OpenAiService::is_served_model(std::string_view name) const {
  return name == system_.load()->info().model_name || (!config_.model_alias.empty() && name == config_.model_alias);
}

HttpReply OpenAiService::models(std::string_view path) const {
  if (system_.load() == nullptr) return error_reply(unavailable("The model is still being loaded."));
  if (!path.starts_with(kModelPrefix)) {
    return json_reply(200, {{"object", "list"}, {"data", Json::array({model_json()})}});
  }
  if (!is_served_model(percent_decoded(path.substr(kModelPrefix.size())))) return model_not_found();
  return json_reply(200, model_json());
}

Result<Json> OpenAiService::read_body(const HttpRequest& request) const {
  if (auto open_for_work = ready(); !open_for_work) return open_for_work.error();
  return parse_json_object(request.body);
}

void OpenAiService::handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  const auto body = read_body(request);
  if (!body) return exchange->reply(error_reply(body.error()));
  request.body = {};  // long prompts exist twice otherwise
  const auto model = parse_model(body.value());
  if (!model) return exchange->reply(error_reply(model.error()));
  if (!model.value().empty() && !is_served_model(model.value())) return exchange->reply(model_not_found());
  if (request.path == "/tokenize") return tokenize(body.value(), exchange);
  if (request.path == "/detokenize") return detokenize(body.value(), exchange);
  generate(body.value(), request.path == "/v1/chat/completions", exchange);
}

void OpenAiService::generate(const Json& body, bool chat, const std::shared_ptr<HttpExchange>& exchange) {
  auto* system = system_.load();
  const RequestLimits limits{.vocabulary = system->info().vocabulary, .max_choices = config_.max_choices};
  auto parsed = chat ? parse_chat_request(body, limits) : parse_completion_request(body, limits);
  if (!parsed) return exchange->reply(error_reply(parsed.error()));
  OpenAiRequest& request = parsed.value();
  auto sink = std::make_shared<Generation>(response_shape(request, system->info().model_name, clock_.unix_seconds()),
                                           request.stream, exchange);
  generations_.add();
  const auto handle = system->generate(std::move(request.generation), std::move(sink));
  exchange->on_client_gone([system, handle, &gone = client_gone_] {
    gone.add();
    system->cancel(handle);
  });
}

void OpenAiService::tokenize(const Json& body, const std::shared_ptr<HttpExchange>& exchange) {
  auto request = parse_tokenize_request(body);
  if (!request) return exchange->reply(error_reply(request.error()));
  system_.load()->tokenize(std::move(request).value(), [exchange](Result<actors::TokenizeResponse> answer) {
    if (!answer) return exchange->reply(error_reply(answer.error()));
    // The list may be long; it is formatted where that holds up nobody.
    exchange->post([exchange, answer = std::move(answer).value()] {
      exchange->reply(json_reply(200, {{"count", answer.tokens.size()},
                                       {"max_model_len", answer.max_model_len},
                                       {"tokens", answer.tokens},
                                       {"token_strs", nullptr}}));
    });
  });
}

void OpenAiService::detokenize(const Json& body, const std::shared_ptr<HttpExchange>& exchange) {
  auto* system = system_.load();
  auto tokens = parse_detokenize_request(body, {.vocabulary = system->info().vocabulary});
  if (!tokens) return exchange->reply(error_reply(tokens.error()));
  system->detokenize(std::move(tokens).value(), [exchange](Result<std::string> text) {
    if (!text) return exchange->reply(error_reply(text.error()));
    exchange->post(
        [exchange, text = std::move(text).value()] { exchange->reply(json_reply(200, {{"prompt", text}})); });
  });
}

}  // namespace hotset::api
