// The transport with the real endpoints over loopback sockets and a fake serving system.
#include "api/http_server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/openai_service.h"
#include "tests/api/fake_serving_system.h"
#include "tests/api/raw_client.h"

namespace hotset::api {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kCompletion = R"({"prompt":"x","max_tokens":5})";
constexpr std::string_view kStream = R"({"prompt":"x","max_tokens":5,"stream":true})";

class HttpServerTest : public ::testing::Test {
 protected:
  void start(const HttpServerConfig& config = {}, ServiceConfig service_config = {}) {
    service_ = std::make_unique<OpenAiService>(std::move(service_config), metrics_, clock_);
    service_->set_system(&system_);
    auto server = HttpServer::start(config, *service_, metrics_);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }
  [[nodiscard]] RawClient client() const { return RawClient(server_->port()); }

  static std::string error_message(const RawAnswer& answer) {
    return nlohmann::json::parse(answer.body).at("error").at("message").get<std::string>();
  }
  static actors::ChoiceDelta text_delta(std::string text) {
    actors::ChoiceDelta delta;
    delta.text = std::move(text);
    return delta;
  }

  MetricsRegistry metrics_;
  SystemClock clock_;
  FakeServingSystem system_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsTheConnectionAndAnswersAPipelineInOrder) {
  system_.automatic = true;
  start();
  auto c = client();
  std::string pipeline;
  for (int i = 0; i < 200; ++i) pipeline += "GET /health HTTP/1.1\r\nHost: h\r\n\r\n";
  pipeline += "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(kCompletion.size()) +
              "\r\n\r\n" + std::string(kCompletion) + "GET /version HTTP/1.1\r\nHost: h\r\n\r\n";
  ASSERT_TRUE(c.send(pipeline));
  for (int i = 0; i < 200; ++i) ASSERT_EQ(c.answer().status, 200);
  EXPECT_NE(c.answer().body.find("one two three"), std::string::npos);
  EXPECT_NE(c.answer().body.find("version"), std::string::npos);
}

TEST_F(HttpServerTest, PipelinedRequestWaitsWhileAnAnswerIsMade) {
  start();
  auto c = client();
  c.post("/v1/completions", kCompletion);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  c.get("/version");
  c.get("/health");
  FakeServingSystem::answer(open[0].request, *open[0].sink);
  EXPECT_NE(c.answer().body.find("one two three"), std::string::npos);
  EXPECT_NE(c.answer().body.find("version"), std::string::npos);
  EXPECT_NE(c.answer().body.find("ok"), std::string::npos);
}

TEST_F(HttpServerTest, SecondServerOnThePortFailsClearly) {
  start();
  HttpServerConfig config;
  config.port = server_->port();
  const auto second = HttpServer::start(config, *service_, metrics_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("listens on 127.0.0.1:" + std::to_string(server_->port())), std::string::npos);
  EXPECT_EQ(second.error().param, "--port");
}

TEST_F(HttpServerTest, BodyLimitHoldsForLengthAndChunks) {
  HttpServerConfig config;
  config.max_body_bytes = 1000;
  start(config);
  auto declared = client();
  declared.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
  const auto refused = declared.answer();
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(error_message(refused).find("--max-body"), std::string::npos);
  EXPECT_TRUE(refused.has_header("connection: close"));

  auto chunked = client();
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string piece = "c8\r\n" + std::string(200, ' ') + "\r\n";
  for (int i = 0; i < 6; ++i) chunked.send(piece);
  EXPECT_EQ(chunked.answer().status, 413);

  system_.automatic = true;
  for (const std::size_t bytes : {999, 1000}) {
    std::string body = R"({"prompt":"a"})";
    body.resize(bytes, ' ');
    auto exact = client();
    exact.post("/v1/completions", body);
    EXPECT_EQ(exact.answer().status, 200) << bytes;
  }
}

// A head that declares much takes nothing by itself.
TEST_F(HttpServerTest, DeclaredBodiesTakeNoMemory) {
  HttpServerConfig config;
  config.max_body_bytes = std::uint64_t{1} << 50;
  start(config);
  auto declared = client();
  declared.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000000\r\n\r\n{");
  auto other = client();
  other.get("/health");
  EXPECT_EQ(other.answer().status, 200);
}

TEST_F(HttpServerTest, BodiesTogetherAreBounded) {
  HttpServerConfig config;
  config.max_body_bytes = 100'000;
  config.max_bodies = 2;
  system_.automatic = true;
  start(config);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 95000\r\n\r\n";
  const std::string most(90'000, ' ');
  {
    auto first = client(), second = client(), third = client(), other = client();
    for (RawClient* one : {&first, &second}) one->send(head + most);
    for (int i = 0; i < 20; ++i) {  // each answer a turn in which the server reads of all
      other.get("/health");
      ASSERT_EQ(other.answer().status, 200);
    }
    third.send(head + most);
    EXPECT_EQ(third.answer().status, 503);
    other.post("/v1/completions", R"({"prompt":"small"})");
    EXPECT_EQ(other.answer().status, 200);
  }
  std::string body = R"({"prompt":"a"})";
  body.resize(95'000, ' ');
  for (int i = 0; i < 100; ++i) {  // the two have gone, once the server has noticed
    auto next = client();
    next.post("/v1/completions", body);
    if (next.answer().status == 200) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL() << "bodies of clients that have gone still count";
}

TEST_F(HttpServerTest, ChunkedBodyIsRead) {
  system_.automatic = true;
  start();
  auto c = client();
  c.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  c.send("5\r\n{\"pro\r\n");
  c.send("9;x=y\r\nmpt\":\"a\"}\r\n0\r\n\r\n");
  EXPECT_EQ(c.answer().status, 200);
}

TEST_F(HttpServerTest, LongFormBodyOfCurlIsRead) {
  system_.automatic = true;
  start();
  auto c = client();
  const std::string body = R"({"prompt":")" + std::string(300'000, 'a') + "\"}";
  c.send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: "
      "application/x-www-form-urlencoded\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(c.answer().status, 200);
}

TEST_F(HttpServerTest, ExpectContinueIsAnsweredBeforeTheBody) {
  system_.automatic = true;
  start();
  auto c = client();
  c.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: " +
         std::to_string(kCompletion.size()) + "\r\n\r\n");
  EXPECT_EQ(c.head().status, 100);
  c.send(kCompletion);
  EXPECT_EQ(c.answer().status, 200);
}

TEST_F(HttpServerTest, BrokenFramingIsRefusedAndClosed) {
  start();
  const std::pair<const char*, int> cases[] = {
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: -2\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", 400},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", 415},
      {"POST /v1/completions HTTP/1.1\r\nHost: h\r\nExpect: magic\r\nContent-Length: 2\r\n\r\nxx", 417},
      {"GET /health HTTP/1.1\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"hello\r\n\r\n", 400},
      {"GET /health HTTP/3.0\r\n\r\n", 505},
  };
  for (const auto& [bytes, status] : cases) {
    auto c = client();
    c.send(bytes);
    const auto answer = c.answer();
    EXPECT_EQ(answer.status, status) << bytes;
    EXPECT_FALSE(error_message(answer).empty()) << bytes;
    EXPECT_TRUE(c.closed()) << bytes;
  }
}

TEST_F(HttpServerTest, EmptyLinesBeforeARequestAreIgnored) {
  system_.automatic = true;
  start();
  auto c = client();
  for (const char* before : {"", "\r\n", "\r\n\r\n\r\n"}) {
    c.send(std::string(before) + "GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_EQ(c.answer().status, 200) << before;
  }
  // After a body, and split between its two bytes.
  c.post("/v1/completions", kCompletion);
  c.send("\r");
  EXPECT_EQ(c.answer().status, 200);
  c.send("\nGET /version HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(c.answer().status, 200);
  c.send("\rGET /health HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(c.answer().status, 400);
}

TEST_F(HttpServerTest, HttpOneZeroNeedsNoHost) {
  start();
  auto c = client();
  c.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(c.answer().status, 200);
}

TEST_F(HttpServerTest, HeadersAreBounded) {
  start();
  auto many = client();
  many.send("GET /health HTTP/1.1\r\nHost: h\r\n");
  for (int i = 0; i < 2000; ++i) many.send("X-Field: 0123456789\r\n");
  EXPECT_EQ(many.answer().status, 431);
  auto line = client();
  line.send("GET /health HTTP/1.1\r\nHost: h\r\nX: " + std::string(100'000, 'a'));
  EXPECT_EQ(line.answer().status, 431);
  auto extension = client();
  extension.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                 std::string(200'000, 'a'));
  EXPECT_EQ(extension.answer().status, 400);
}

TEST_F(HttpServerTest, SlowHeaderIsCutOffWhileOthersAreServed) {
  HttpServerConfig config;
  config.request_timeout = milliseconds(200);
  start(config);
  auto slow = client();
  slow.send("GET /health HTTP/1.1\r\nHost: h\r\nX: ");
  auto other = client();
  other.get("/health");
  EXPECT_EQ(other.answer().status, 200);
  EXPECT_EQ(slow.answer().status, 408);
  EXPECT_TRUE(slow.closed());
  auto body = client();
  body.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.answer().status, 408);
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitGetHealthButNoWork) {
  HttpServerConfig config;
  config.max_connections = 2;
  start(config);
  auto a = client(), b = client();
  a.get("/health");
  b.get("/health");
  EXPECT_EQ(a.answer().status, 200);
  EXPECT_EQ(b.answer().status, 200);
  auto health = client();
  health.get("/health");
  EXPECT_EQ(health.answer().status, 200);
  auto work = client();
  work.post("/v1/completions", kCompletion);
  const auto refused = work.answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.has_header("retry-after: 1"));
}

TEST_F(HttpServerTest, ClientThatLeavesIsCancelledInEveryPhase) {
  start();
  {  // nothing has happened yet, not streamed
    auto c = client();
    c.post("/v1/completions", kCompletion);
    ASSERT_EQ(system_.wait_for_open(1).size(), 1U);
  }
  EXPECT_TRUE(system_.wait_for_cancelled(1));
  {  // in the middle of a stream
    auto c = client();
    c.post("/v1/completions", kStream);
    auto open = system_.wait_for_open(1);
    ASSERT_EQ(open.size(), 1U);
    open[0].sink->on_started({});
    open[0].sink->on_delta(text_delta("a"));
    EXPECT_EQ(c.head().status, 200);
    EXPECT_NE(c.chunk().find("data: {"), std::string::npos);
  }
  EXPECT_TRUE(system_.wait_for_cancelled(2));
  {  // half-close
    auto c = client();
    c.post("/v1/completions", kCompletion);
    ASSERT_EQ(system_.wait_for_open(1).size(), 1U);
    c.half_close();
    EXPECT_TRUE(system_.wait_for_cancelled(3));
  }
  {  // with so much pipelined behind the request that the server has stopped reading
    auto c = client();
    c.post("/v1/completions", kCompletion);
    ASSERT_EQ(system_.wait_for_open(1).size(), 1U);
    c.send(std::string(200'000, '\n'));
  }
  EXPECT_TRUE(system_.wait_for_cancelled(4));
}

TEST_F(HttpServerTest, StalledReaderIsDroppedWithBoundedOutput) {
  HttpServerConfig config;
  config.max_unread_bytes = 100'000;
  config.time_to_read = milliseconds(50);
  start(config);
  RawClient stalled(server_->port(), 4096);
  stalled.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  open[0].sink->on_started({});
  bool dropped = false;
  for (int i = 0; i < 1000 && !dropped; ++i) {
    open[0].sink->on_delta(text_delta(std::string(100'000, 'x')));
    dropped = system_.wait_for_cancelled(1, milliseconds(10));
  }
  EXPECT_TRUE(dropped);
}

// Far more at once than may stay unread, to a client that reads on.
TEST_F(HttpServerTest, LargeEventsReachAReaderWhole) {
  HttpServerConfig config;
  config.max_unread_bytes = 10'000;
  start(config);
  RawClient reader(server_->port(), 4096);
  reader.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  open[0].sink->on_started({});
  for (int i = 0; i < 3; ++i) open[0].sink->on_delta(text_delta(std::string(4'000'000, 'x')));
  FakeServingSystem::answer(open[0].request, *open[0].sink);
  EXPECT_EQ(reader.head().status, 200);
  std::size_t bytes = 0;
  std::string last, next;
  while (!(next = reader.chunk()).empty()) bytes += (last = next).size();
  EXPECT_EQ(last, "data: [DONE]\n\n");
  EXPECT_GT(bytes, 12'000'000U);
}

TEST_F(HttpServerTest, StalledReaderIsDroppedAfterTheWriteTimeout) {
  HttpServerConfig config;
  config.request_timeout = milliseconds(200);
  config.max_unread_bytes = 1 << 30;
  start(config);
  RawClient stalled(server_->port(), 4096);
  stalled.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  open[0].sink->on_started({});
  open[0].sink->on_delta(text_delta(std::string(20'000'000, 'x')));
  EXPECT_TRUE(system_.wait_for_cancelled(1));
}

TEST_F(HttpServerTest, SilentStreamGetsComments) {
  HttpServerConfig config;
  config.comment_interval = milliseconds(50);
  start(config);
  auto c = client();
  c.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  open[0].sink->on_started({});
  EXPECT_EQ(c.head().status, 200);
  EXPECT_EQ(c.chunk(), ": waiting\n\n");
  EXPECT_EQ(c.chunk(), ": waiting\n\n");
  FakeServingSystem::answer(open[0].request, *open[0].sink);
  std::string last, next;
  while (!(next = c.chunk()).empty()) last = next;
  EXPECT_EQ(last, "data: [DONE]\n\n");
  c.get("/health");
  EXPECT_EQ(c.answer().status, 200) << "the connection is kept after a good stream";
}

TEST_F(HttpServerTest, FailureInsideAStreamIsAnEventThenTheEnd) {
  start();
  auto c = client();
  c.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  open[0].sink->on_started({});
  open[0].sink->on_delta(text_delta("a"));
  open[0].sink->on_error(Error{ErrorCode::kInternal, "The engine failed.", {}});
  EXPECT_EQ(c.head().status, 200);
  const std::string all = c.rest();
  EXPECT_NE(all.find(R"(data: {"error":{"message":"The engine failed.")"), std::string::npos);
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
  EXPECT_EQ(all.find("\"stop\""), std::string::npos);
}

TEST_F(HttpServerTest, ErrorBeforeTheFirstByteIsAnOrdinaryReply) {
  start();
  auto c = client();
  c.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  open[0].sink->on_error(
      Error{ErrorCode::kContextLengthExceeded, "The prompt has 9 tokens, the limit is 8.", "prompt"});
  const auto answer = c.answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_TRUE(answer.has_header("content-type: application/json"));
  EXPECT_EQ(nlohmann::json::parse(answer.body)["error"]["code"], "context_length_exceeded");
}

TEST_F(HttpServerTest, DrainClosesIdleConnectionsAndLetsStreamsEnd) {
  start();
  auto idle = client();
  idle.get("/health");
  EXPECT_EQ(idle.answer().status, 200);
  auto busy = client();
  busy.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  service_->begin_drain();
  server_->begin_drain();
  EXPECT_TRUE(idle.closed());
  EXPECT_FALSE(server_->wait_idle(milliseconds(1)));
  auto probe = client();
  probe.get("/health");
  EXPECT_EQ(probe.answer().status, 503);
  auto late = client();
  late.post("/v1/completions", kCompletion);
  EXPECT_EQ(late.answer().status, 503);
  FakeServingSystem::answer(open[0].request, *open[0].sink);
  EXPECT_NE(busy.rest().find("[DONE]"), std::string::npos);
  EXPECT_TRUE(server_->wait_idle(milliseconds(30'000)));
}

TEST_F(HttpServerTest, ServerEndsWhileRequestsAreOpen) {
  start();
  auto c = client();
  c.post("/v1/completions", kStream);
  auto open = system_.wait_for_open(1);
  ASSERT_EQ(open.size(), 1U);
  server_.reset();
  EXPECT_TRUE(c.closed());
  EXPECT_TRUE(system_.wait_for_cancelled(1));
  open[0].sink->on_started({});
  open[0].sink->on_finished({});
}

TEST_F(HttpServerTest, TwoHundredStreamsAtOnceAndHealthStaysQuick) {
  start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(client());
    clients.back().post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  }
  auto open = system_.wait_for_open(200);
  ASSERT_EQ(open.size(), 200U);
  for (auto& request : open) request.sink->on_started({{{1}}});
  for (int round = 0; round < 20; ++round) {
    for (auto& request : open) request.sink->on_delta(text_delta("word "));
    const auto before = std::chrono::steady_clock::now();
    auto probe = client();
    probe.get("/health");
    EXPECT_EQ(probe.answer().status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(500));
  }
  for (auto& request : open) {
    auto last = text_delta("");
    last.finish = actors::FinishReason::kLength;
    request.sink->on_delta(last);
    request.sink->on_finished({1, 20});
  }
  for (auto& c : clients) {
    EXPECT_EQ(c.head().status, 200);
    int words = 0;
    std::string next, last;
    while (!(next = c.chunk()).empty()) {
      words += next.find("word ") != next.npos ? 1 : 0;
      last = next;
    }
    EXPECT_EQ(words, 20);
    EXPECT_EQ(last, "data: [DONE]\n\n");
  }
}

TEST_F(HttpServerTest, Http10GetsAPlainStreamAndTheEnd) {
  system_.automatic = true;
  start();
  auto c = client();
  c.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(kStream.size()) + "\r\n\r\n" +
         std::string(kStream));
  const std::string all = c.rest();
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_NE(all.find("data: [DONE]\n\n"), std::string::npos);
}

}  // namespace
}  // namespace hotset::api
