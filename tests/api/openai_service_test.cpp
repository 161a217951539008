// Endpoints, API key and CORS over real connections; the engine is a fake.
#include "api/openai_service.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/http_server.h"
#include "api/openai_error.h"
#include "tests/api/fake_serving_system.h"
#include "tests/api/raw_client.h"

namespace hotset::api {
namespace {

class OpenAiServiceTest : public ::testing::Test {
 protected:
  void start(ServiceConfig config = {}, bool loaded = true) {
    system_.automatic = true;
    service_ = std::make_unique<OpenAiService>(std::move(config), metrics_, clock_);
    if (loaded) service_->set_system(&system_);
    server_ = HttpServer::start({}, *service_, metrics_).value();
  }
  RawAnswer get(std::string_view path, std::string_view headers = {}) {
    RawClient client(server_->port());
    client.get(path, headers);
    return client.answer();
  }
  RawAnswer post(std::string_view path, std::string_view body, std::string_view headers = {}) {
    RawClient client(server_->port());
    client.post(path, body, headers);
    return client.answer();
  }
  RawAnswer call(std::string_view method, std::string_view path, std::string_view headers = {}) {
    RawClient client(server_->port());
    client.request(method, path, headers);
    return client.answer(method == "HEAD");
  }
  static Json json(const RawAnswer& answer) { return parse_json(answer.body).value(); }

  MetricsRegistry metrics_;
  ManualClock clock_;
  FakeServingSystem system_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(OpenAiServiceTest, KeyAndCorsMatrix) {
  start({.api_key = "sk-secret"});
  const std::string right = "Authorization: Bearer sk-secret\r\n", lower = "authorization: bearer sk-secret\r\n";
  for (const char* path : {"/health", "/version", "/metrics"}) {
    EXPECT_EQ(get(path).status, 200) << path;
    EXPECT_EQ(get(path, "Authorization: Bearer wrong\r\n").status, 200) << path;
  }
  const std::string_view body = R"({"prompt":"x","messages":[{"role":"user","content":"x"}],"tokens":[1]})";
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(post(path, body, right).status, 200) << path;
    EXPECT_EQ(post(path, body, lower).status, 200) << path;
    for (const char* wrong :
         {"", "Authorization: Bearer sk-secreT\r\n", "Authorization: Bearer sk-secret2\r\n",
          "Authorization: Bearer \r\n", "Authorization: sk-secret\r\n", "Authorization: Basic sk-secret\r\n"}) {
      const auto refused = post(path, body, wrong);
      EXPECT_EQ(refused.status, 401) << path << wrong;
      EXPECT_EQ(json(refused)["error"]["code"], "invalid_api_key");
      EXPECT_TRUE(refused.has_header("access-control-allow-origin: *"));
      EXPECT_EQ(refused.body.find("sk-"), std::string::npos);
    }
  }
  for (const char* path : {"/v1/models", "/v1/models/fake", "/v1/absent"}) EXPECT_EQ(get(path).status, 401) << path;
  EXPECT_EQ(get("/v1/models", right).status, 200);
  for (const char* path : {"/v1/chat/completions", "/v1/models", "/health"}) {
    const auto preflight =
        call("OPTIONS", path, "Origin: http://a\r\nAccess-Control-Request-Headers: authorization,x-stainless-os\r\n");
    EXPECT_EQ(preflight.status, 204) << path;
    EXPECT_TRUE(preflight.has_header("access-control-allow-origin: *"));
    EXPECT_TRUE(preflight.has_header("access-control-allow-headers: authorization,x-stainless-os"));
    EXPECT_NE(preflight.head.find("access-control-allow-methods: GET, HEAD, POST"), std::string::npos);
  }
  RawClient stream(server_->port());
  stream.post("/v1/completions", R"({"prompt":"x","stream":true})", right);
  EXPECT_TRUE(stream.head().has_header("access-control-allow-origin: *"));
}

TEST_F(OpenAiServiceTest, UnknownPathsAndMethodsAreJsonErrors) {
  start();
  const auto absent = get("/v2/nothing");
  EXPECT_EQ(absent.status, 404);
  EXPECT_EQ(json(absent)["error"]["type"], "invalid_request_error");
  const auto method = get("/v1/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_TRUE(method.has_header("allow: POST, OPTIONS"));
  EXPECT_FALSE(json(method)["error"]["message"].get<std::string>().empty());
  EXPECT_EQ(post("/health", "{}").status, 405);
  EXPECT_EQ(call("DELETE", "/v1/models/fake").status, 405);
  const auto head = call("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(call("HEAD", "/v1/completions").status, 405);
  EXPECT_EQ(get("/health?verbose=1").status, 200);
  EXPECT_EQ(get("http://host:1/health").status, 200);
}

TEST_F(OpenAiServiceTest, ModelsAndNames) {
  start({.model_alias = "/models/x y.gguf"});
  const Json list = json(get("/v1/models"));
  ASSERT_EQ(list["data"].size(), 1U);
  EXPECT_EQ(list["data"][0]["id"], "fake");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(json(get("/v1/models/fake"))["max_model_len"], 2048);
  EXPECT_EQ(get("/v1/models/%2Fmodels%2fx%20y.gguf").status, 200);
  EXPECT_EQ(json(get("/v1/models/other"))["error"]["code"], "model_not_found");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","model":"fake"})").status, 200);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","model":"/models/x y.gguf"})").status, 200);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","model":null})").status, 200);
  const auto other = post("/v1/completions", R"({"prompt":"x","model":"gpt"})");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(json(other)["error"]["code"], "model_not_found");
  EXPECT_EQ(json(other)["error"]["param"], "model");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","model":5})").status, 400);
}

TEST_F(OpenAiServiceTest, CompletionsAndChat) {
  start();
  const Json completion =
      json(post("/v1/completions", R"({"prompt":["a","b"],"n":2,"logprobs":1,"return_token_ids":true})"));
  ASSERT_EQ(completion["choices"].size(), 4U);
  EXPECT_EQ(completion["choices"][3]["text"], "one two three");
  EXPECT_EQ(completion["choices"][3]["token_ids"], Json({1, 2, 3}));
  EXPECT_EQ(completion["choices"][3]["prompt_token_ids"], Json({7, 8}));
  EXPECT_EQ(completion["choices"][3]["logprobs"]["tokens"], Json({"one", " two", " three"}));
  EXPECT_EQ(completion["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(completion["usage"]["completion_tokens"], 12);
  const Json chat = json(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"foo":1})"));
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "one two three");
  EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "stop");
}

TEST_F(OpenAiServiceTest, BadTextIsRefusedBeforeAnyStreamAndTheServerLives) {
  start();
  const std::string bodies[] = {
      "{\"prompt\":\"\xff\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}],\"stream\":true}",
      R"({"prompt":"x \ud83d","messages":[{"role":"user","content":"x \ud83d"}]})",
      "\xc4\xe3\xba\xc3",
      R"({"prompt":[)" + std::string(1'000'000, '[') + "]}",
      R"({"prompt":[1)" +
          [] {
            std::string s;
            for (int i = 0; i < 100'000; ++i) s += ",\"a\"";
            return s;
          }() +
          "],\"messages\":5}",
      "",
      "[]",
      "null",
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    for (const auto& body : bodies) {
      const auto refused = post(path, body);
      EXPECT_EQ(refused.status, 400) << body.substr(0, 40);
      EXPECT_TRUE(refused.has_header("content-type: application/json"));
      EXPECT_LT(refused.body.size(), 4096U);
      EXPECT_TRUE(is_valid_utf8(refused.body));
      EXPECT_EQ(json(refused)["error"]["type"], "invalid_request_error");
    }
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 200);
}

TEST_F(OpenAiServiceTest, TokenizeAndDetokenize) {
  start();
  const Json tokens = json(post("/tokenize", R"({"model":"fake","prompt":"ab"})"));
  EXPECT_EQ(tokens["tokens"], Json({97, 98}));
  EXPECT_EQ(tokens["count"], 2);
  EXPECT_EQ(tokens["max_model_len"], 2048);
  EXPECT_EQ(json(post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})"))["count"], 3);
  EXPECT_EQ(json(post("/detokenize", R"({"tokens":[97,98]})"))["prompt"], "ab");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[1000]})").status, 400);
}

TEST_F(OpenAiServiceTest, HealthFollowsTheSystem) {
  start({}, false);
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(json(get("/health"))["status"], "loading");
  const auto early = post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(early.status, 503);
  EXPECT_NE(early.head.find("retry-after: "), std::string::npos);
  EXPECT_EQ(get("/v1/models").status, 503);
  service_->set_system(&system_);
  EXPECT_EQ(json(get("/health"))["status"], "ok");
  system_.set_health({actors::HealthState::kUnhealthy, "no progress"});
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(json(get("/health"))["reason"], "no progress");
  system_.set_health({actors::HealthState::kReady, {}});
  service_->begin_drain();
  EXPECT_EQ(json(get("/health"))["status"], "draining");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 503);
}

TEST_F(OpenAiServiceTest, MetricsAndVersionAreText) {
  start();
  const auto metrics = get("/metrics");
  EXPECT_NE(metrics.body.find("hotset_http_requests_total"), std::string::npos);
  EXPECT_TRUE(metrics.has_header("content-type: text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_FALSE(json(get("/version"))["version"].get<std::string>().empty());
}

TEST(OpenAiError, StatusOfEveryCode) {
  const std::pair<ErrorCode, int> expected[] = {
      {ErrorCode::kInvalidArgument, 400}, {ErrorCode::kContextLengthExceeded, 400},
      {ErrorCode::kCapacityNever, 400},   {ErrorCode::kNotFound, 404},
      {ErrorCode::kOverloaded, 503},      {ErrorCode::kUnavailable, 503},
      {ErrorCode::kTimeout, 503},         {ErrorCode::kCorrupt, 500},
      {ErrorCode::kInternal, 500}};
  for (const auto& [code, status] : expected) {
    const auto reply = error_reply(Error{code, "Text \xff with a bad byte.", "field"});
    EXPECT_EQ(reply.status, status);
    const Json error = parse_json(reply.body).value()["error"];
    EXPECT_EQ(error["param"], "field");
    EXPECT_EQ(error["type"], status >= 500 ? "server_error" : "invalid_request_error");
    EXPECT_EQ(reply.headers.empty(), status != 503);
  }
  EXPECT_LT(error_reply(Error{ErrorCode::kInvalidArgument, std::string(1 << 20, 'x'), {}}).body.size(), 4096U);
}

}  // namespace
}  // namespace hotset::api
