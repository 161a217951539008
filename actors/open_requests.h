// The sinks of requests that have not ended, by handle. Whoever takes a sink out ends its request: so exactly one event
// ends it, whether the gateway answers, the client goes away, an actor dies or the server stops.
// Thread-safe; no sink is ever called under the lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "actors/requests.h"
#include "actors/serving_system.h"

namespace hotset::actors {

class OpenRequests {
 public:
  void add(RequestHandle handle, std::shared_ptr<ResponseSink> sink);
  // Null: the request has ended.
  [[nodiscard]] std::shared_ptr<ResponseSink> find(RequestHandle handle) const;
  std::shared_ptr<ResponseSink> take(RequestHandle handle);
  std::vector<std::shared_ptr<ResponseSink>> take_all();

  [[nodiscard]] std::size_t size() const;
  // False: some are still open at the deadline.
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable empty_;
  std::unordered_map<RequestHandle, std::shared_ptr<ResponseSink>> sinks_;
};

}  // namespace hotset::actors
