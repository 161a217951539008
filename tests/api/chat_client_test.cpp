#include "api/chat_client.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "api/http_server.h"
#include "api/openai_service.h"
#include "tests/api/fake_serving_system.h"

namespace hotset::api {
namespace {

class ChatClientTest : public ::testing::Test {
 protected:
  ChatClientTest() : service_({.api_key = "k"}, metrics_, clock_) {
    service_.set_system(&system_);
    server_ = HttpServer::start({}, service_, metrics_).value();
    options_.url = "http://" + server_->address() + "/v1/";
    options_.api_key = "k";
  }
  int run(const std::string& input) {
    std::istringstream in(input);
    return chat(options_, false, in, out_, err_);
  }

  MetricsRegistry metrics_;
  SystemClock clock_;
  FakeServingSystem system_;
  OpenAiService service_;
  std::unique_ptr<HttpServer> server_;
  ChatOptions options_;
  std::ostringstream out_, err_;
};

TEST_F(ChatClientTest, SendsTheWholeConversationEachTurn) {
  options_.system = "Be brief.";
  std::vector<std::string> seen;
  std::thread engine([&] {
    for (int turn = 0; turn < 2; ++turn) {
      auto open = system_.take_open();
      if (!open) return;
      seen.push_back(std::get<actors::ChatPrompt>(open->request.prompts.at(0)).messages_json);
      FakeServingSystem::answer(open->request, *open->sink);
    }
  });
  EXPECT_EQ(run("hi\n\nmore\n/quit\nnever\n"), 0);
  engine.join();
  EXPECT_EQ(out_.str(), "one two three\none two three\n");
  EXPECT_EQ(err_.str(), "");
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[1], R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},)"
                     R"({"role":"assistant","content":"one two three"},{"role":"user","content":"more"}])");
}

TEST_F(ChatClientTest, ServerErrorsAreShown) {
  options_.api_key = "wrong";
  EXPECT_EQ(run("hi\n"), 1);
  EXPECT_NE(err_.str().find("API key"), std::string::npos);
}

TEST_F(ChatClientTest, ErrorInsideTheStreamIsShown) {
  std::thread engine([&] {
    auto open = system_.take_open();
    if (!open) return;
    open->sink->on_started({{{1}}});
    open->sink->on_error(Error{ErrorCode::kInternal, "The engine failed.", {}});
  });
  EXPECT_EQ(run("hi\n"), 1);
  engine.join();
  EXPECT_NE(err_.str().find("The engine failed."), std::string::npos);
}

TEST_F(ChatClientTest, MissingServerIsExplained) {
  server_.reset();
  EXPECT_EQ(run("hi\n"), 1);
  EXPECT_NE(err_.str().find("no server answers at"), std::string::npos);
  options_.url = "http://";
  EXPECT_EQ(run("hi\n"), 1);
}

TEST(EventReader, TakesPiecesOfAnySize) {
  const std::string stream = ": waiting\n\ndata: {\"a\":1}\r\n\r\ndata:x\n\ndata: [DONE]\n\n";
  for (std::size_t size = 1; size <= stream.size(); ++size) {
    std::vector<std::string> events;
    EventReader reader([&](const std::string& data) { events.push_back(data); });
    for (std::size_t at = 0; at < stream.size(); at += size) reader.feed(std::string_view(stream).substr(at, size));
    EXPECT_EQ(events, (std::vector<std::string>{"{\"a\":1}", "x", "[DONE]"})) << size;
  }
}

}  // namespace
}  // namespace hotset::api
