// The whole server process, from start to exit code, with a fake engine behind it: each test forks one.
#include "api/serve_command.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "tests/api/fake_serving_system.h"
#include "tests/api/raw_client.h"

namespace hotset {
namespace {

// stop() as the real one: what still runs is failed. With model "stuck" it hangs.
class StoppableSystem final : public api::FakeServingSystem {
 public:
  explicit StoppableSystem(bool stuck) : stuck_(stuck) {}
  actors::RequestHandle generate(actors::GenerationRequest request,
                                 std::shared_ptr<actors::ResponseSink> sink) override {
    sink->on_started({{{1}}});
    return FakeServingSystem::generate(std::move(request), std::move(sink));
  }
  void stop(std::chrono::milliseconds /*deadline*/) override {
    for (;;) {
      while (auto open = take_open_now()) {
        open->sink->on_error(Error{ErrorCode::kUnavailable, "The server is shutting down.", {}});
      }
      if (!stuck_) return;
      std::this_thread::yield();
    }
  }

 private:
  const bool stuck_;
};

}  // namespace

namespace actors {
Result<std::unique_ptr<ServingSystem>> ServingSystem::start(const ServerConfig& config, MetricsRegistry& /*metrics*/) {
  if (config.model == "broken") return corrupt("The file is not a checkpoint.");
  return std::unique_ptr<ServingSystem>(new StoppableSystem(config.model == "stuck"));
}
}  // namespace actors

namespace api {
namespace {

std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

class ServeCommandTest : public ::testing::Test {
 protected:
  void launch(const std::string& model, std::int64_t drain_timeout_ms = 30'000) {
    ServerConfig config;
    config.drain_timeout_ms = drain_timeout_ms;
    config.model = model;
    config.port = port_;
    config.log_level = "off";
    child_ = ::fork();
    if (child_ == 0) std::_Exit(serve(config));
    ASSERT_GT(child_, 0);
  }
  // Waits until /health says so.
  bool becomes(int status) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      RawClient probe(port_);
      if (probe.connected()) {
        probe.get("/health");
        if (probe.answer().status == status) return true;
      }
      std::this_thread::yield();
    }
    return false;
  }
  int exit_code() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::uint16_t port_ = free_port();
  pid_t child_ = -1;
};

TEST_F(ServeCommandTest, IdleServerEndsAtOnceWithZero) {
  for (const int number : {SIGTERM, SIGINT}) {
    launch("good");
    ASSERT_TRUE(becomes(200));
    RawClient idle(port_);
    const auto before = std::chrono::steady_clock::now();
    ::kill(child_, number);
    EXPECT_EQ(exit_code(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(3));
    EXPECT_TRUE(idle.closed());
  }
}

// Also when the signal comes twice: `timeout` sends it to the process and to its group.
TEST_F(ServeCommandTest, OpenStreamEndsWithAnErrorEvent) {
  for (const int times : {1, 2}) {
    launch("good");
    ASSERT_TRUE(becomes(200));
    RawClient stream(port_);
    stream.post("/v1/completions", R"({"prompt":"x","stream":true})");
    ASSERT_EQ(stream.head().status, 200);
    for (int i = 0; i < times; ++i) {
      ::kill(child_, SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const std::string rest = stream.rest();
    EXPECT_NE(rest.find("data: {\"error\":{\"message\":\"The server is shutting down.\""), std::string::npos);
    EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
    EXPECT_EQ(exit_code(), 0) << times;
  }
}

TEST_F(ServeCommandTest, HealthSaysDrainingAndASecondSignalEndsAtOnce) {
  launch("stuck");
  ASSERT_TRUE(becomes(200));
  ::kill(child_, SIGTERM);
  ASSERT_TRUE(becomes(503));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(child_, SIGTERM);
  EXPECT_EQ(exit_code(), 128 + SIGTERM);
}

TEST_F(ServeCommandTest, AnEndThatHangsIsCut) {
  launch("stuck", 0);
  ASSERT_TRUE(becomes(200));
  ::kill(child_, SIGTERM);
  EXPECT_EQ(exit_code(), 1);
}

TEST_F(ServeCommandTest, FailedStartIsOne) {
  launch("broken");
  EXPECT_EQ(exit_code(), 1);
  launch("good");
  ASSERT_TRUE(becomes(200));
  const pid_t first = child_;
  launch("good");
  EXPECT_EQ(exit_code(), 1) << "the port is taken";
  child_ = first;
  ::kill(child_, SIGTERM);
  EXPECT_EQ(exit_code(), 0);
}

}  // namespace
}  // namespace api
}  // namespace hotset
