#include "api/chat_client.h"

#include <httplib.h>

#include <istream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "core/concat.h"

namespace hotset::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kConnectSeconds = 5;
constexpr int kSilenceSeconds = 600;  // a long prompt on a busy server; streams get comments meanwhile

struct Answer {
  std::string text;
  std::string finish;
  std::string error;  // empty: the answer is complete
};

std::string error_message(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    return json["error"].value("message", "unknown error");
  }
  return "the server's answer is not understood";
}

void take_event(const std::string& data, Answer& answer, std::ostream& out) {
  if (data == "[DONE]") return;
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object() || json.contains("error")) {
    answer.error = error_message(data);
    return;
  }
  if (!json.contains("choices") || !json["choices"].is_array() || json["choices"].empty()) return;
  const Json& choice = json["choices"][0];
  if (choice.contains("delta") && choice["delta"].contains("content") && choice["delta"]["content"].is_string()) {
    const auto piece = choice["delta"]["content"].get<std::string>();
    answer.text += piece;
    out << piece << std::flush;
  }
  if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
    answer.finish = choice["finish_reason"].get<std::string>();
  }
}

// Splits "http://host:8080/v1" into what the client connects to and the path before /v1.
std::pair<std::string, std::string> split_url(std::string url) {
  if (url.find("://") == url.npos) url = "http://" + url;
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  const auto slash = url.find('/', url.find("://") + 3);
  return slash == url.npos ? std::pair{url, std::string()} : std::pair{url.substr(0, slash), url.substr(slash)};
}

class Conversation {
 public:
  Conversation(const ChatOptions& options, std::ostream& out) : options_(options), out_(out) {
    auto [address, prefix] = split_url(options.url);
    path_ = prefix + "/v1/chat/completions";
    client_ = std::make_unique<httplib::Client>(address);
    client_->set_connection_timeout(kConnectSeconds);
    client_->set_read_timeout(kSilenceSeconds);
    client_->set_keep_alive(true);
    reset();
  }

  [[nodiscard]] bool valid() const { return client_->is_valid(); }
  void reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  // A failed turn leaves the conversation as it was.
  Answer ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Answer answer = send();
    if (answer.error.empty()) {
      messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    } else {
      messages_.erase(messages_.size() - 1);
    }
    return answer;
  }

 private:
  Answer send() {
    Json body = {{"messages", messages_}, {"stream", true}};
    if (!options_.model.empty()) body["model"] = options_.model;
    if (options_.max_tokens > 0) body["max_tokens"] = options_.max_tokens;
    if (options_.temperature) body["temperature"] = *options_.temperature;

    Answer answer;
    std::string refusal;
    int status = 0;
    bool done = false;
    EventReader events([&](const std::string& data) {
      done = done || data == "[DONE]";
      take_event(data, answer, out_);
    });
    httplib::Request request;
    request.method = "POST";
    request.path = path_;
    request.set_header("Content-Type", "application/json");
    if (!options_.api_key.empty()) request.set_header("Authorization", "Bearer " + options_.api_key);
    request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    request.response_handler = [&](const httplib::Response& response) {
      status = response.status;
      return true;
    };
    request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
      if (status == 200) {
        events.feed({data, size});
      } else {
        refusal.append(data, size);
      }
      return true;
    };
    const auto result = client_->send(request);
    if (!answer.error.empty()) return answer;
    if (!result) {
      answer.error = status == 0
                         ? concat("no server answers at ", options_.url, "; start one with './run serve' or give --url")
                         : std::string("the connection broke in the middle of the answer");
    } else if (status != 200) {
      answer.error = error_message(refusal);
    } else if (!done) {
      answer.error = "the answer ended before it was complete";
    }
    return answer;
  }

  const ChatOptions& options_;
  std::ostream& out_;
  std::string path_;
  std::unique_ptr<httplib::Client> client_;
  Json messages_;
};

}  // namespace

void EventReader::feed(std::string_view piece) {
  for (const char c : piece) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (line_.ends_with('\r')) line_.pop_back();
    constexpr std::string_view kData = "data:";
    if (line_.starts_with(kData)) {
      line_.erase(0, kData.size());
      if (line_.starts_with(' ')) line_.erase(0, 1);
      on_data_(line_);
    }
    line_.clear();
  }
}

int chat(const ChatOptions& options, bool interactive, std::istream& in, std::ostream& out, std::ostream& err) {
  Conversation conversation(options, out);
  if (!conversation.valid()) {
    err << "The URL is not valid; it looks like http://127.0.0.1:8080\n";
    return 1;
  }
  if (interactive) err << "Chat with " << options.url << "; /reset starts anew, /quit ends.\n";
  bool failed = false;
  std::string line;
  while ((interactive ? err << "> " << std::flush : err), std::getline(in, line)) {
    if (line == "/quit" || line == "/exit") break;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    const Answer answer = conversation.ask(line);
    out << '\n' << std::flush;
    failed = !answer.error.empty();
    if (failed) err << "Error: " << answer.error << '\n';
    if (answer.finish == "length") err << "(cut: the token limit is reached)\n";
  }
  return failed ? 1 : 0;
}

}  // namespace hotset::api
