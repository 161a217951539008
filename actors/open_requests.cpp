#include "actors/open_requests.h"

#include <utility>

namespace hotset::actors {

void OpenRequests::add(RequestHandle handle, std::shared_ptr<ResponseSink> sink) {
  const std::lock_guard lock(mutex_);
  sinks_.emplace(handle, std::move(sink));
}

std::shared_ptr<ResponseSink> OpenRequests::find(RequestHandle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = sinks_.find(handle);
  return found == sinks_.end() ? nullptr : found->second;
}

std::shared_ptr<ResponseSink> OpenRequests::take(RequestHandle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = sinks_.find(handle);
  if (found == sinks_.end()) return nullptr;
  std::shared_ptr<ResponseSink> sink = std::move(found->second);
  sinks_.erase(found);
  if (sinks_.empty()) empty_.notify_all();
  return sink;
}

std::vector<std::shared_ptr<ResponseSink>> OpenRequests::take_all() {
  std::vector<std::shared_ptr<ResponseSink>> out;
  const std::lock_guard lock(mutex_);
  out.reserve(sinks_.size());
  for (auto& [handle, sink] : sinks_) out.push_back(std::move(sink));
  sinks_.clear();
  empty_.notify_all();
  return out;
}

std::size_t OpenRequests::size() const {
  const std::lock_guard lock(mutex_);
  return sinks_.size();
}

bool OpenRequests::wait_until_empty(std::chrono::steady_clock::time_point deadline) const {
  std::unique_lock lock(mutex_);
  return empty_.wait_until(lock, deadline, [this] { return sinks_.empty(); });
}

}  // namespace hotset::actors
