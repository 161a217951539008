// A callback that is called exactly once, whatever happens to the message that carries it.
#pragma once

#include <functional>
#include <utility>

#include "core/result.h"

namespace hotset::actors {

template <class T>
class Reply {
 public:
  explicit Reply(std::function<void(Result<T>)> done) : done_(std::move(done)) {}
  // Nobody answered: the actor is gone, and the message with it.
  ~Reply() { deliver(Error{ErrorCode::kUnavailable, "the server is not able to answer", {}}); }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  // One thread at a time: the actor that holds the message.
  void deliver(Result<T> result) {
    if (auto done = std::exchange(done_, nullptr)) done(std::move(result));
  }

 private:
  std::function<void(Result<T>)> done_;
};

}  // namespace hotset::actors
