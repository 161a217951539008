// `hotset chat`: a conversation in the terminal with a running server, streamed.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include "api/options.h"

namespace hotset::api {

// Splits a stream of server-sent events, in pieces of any size, into the data of its events.
class EventReader {
 public:
  explicit EventReader(std::function<void(const std::string& data)> on_data) : on_data_(std::move(on_data)) {}
  void feed(std::string_view piece);

 private:
  std::function<void(const std::string&)> on_data_;
  std::string line_;
};

// One user message per line of `in`, until its end or /quit; /reset forgets the conversation. Answers go to `out`,
// problems and (when `interactive`) prompts to `err`. Returns the exit code: 1 when the last request failed.
int chat(const ChatOptions& options, bool interactive, std::istream& in, std::ostream& out, std::ostream& err);

}  // namespace hotset::api
