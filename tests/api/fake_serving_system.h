// A serving system without a model, steered by the test: requests wait until the test sends their events.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "actors/serving_system.h"

namespace hotset::api {

class FakeServingSystem : public actors::ServingSystem {
 public:
  struct Open {
    actors::GenerationRequest request;
    std::shared_ptr<actors::ResponseSink> sink;
  };

  FakeServingSystem() {
    info_.model_name = "fake";
    info_.max_context = 2048;
    info_.vocabulary = 1000;
    info_.has_tokenizer = info_.has_chat_template = true;
  }

  const actors::ServingInfo& info() const override { return info_; }
  actors::HealthReport health() const override {
    const std::scoped_lock lock(mutex_);
    return health_;
  }
  void set_health(actors::HealthReport health) {
    const std::scoped_lock lock(mutex_);
    health_ = std::move(health);
  }

  // With `automatic` every request is answered at once: text "one two three" in three deltas per choice.
  bool automatic = false;

  actors::RequestHandle generate(actors::GenerationRequest request,
                                 std::shared_ptr<actors::ResponseSink> sink) override {
    const std::scoped_lock lock(mutex_);
    const auto handle = ++last_handle_;
    if (automatic) {
      answer(request, *sink);
    } else {
      open_[handle] = Open{std::move(request), std::move(sink)};
    }
    changed_.notify_all();
    return handle;
  }

  void cancel(actors::RequestHandle handle) override {
    const std::scoped_lock lock(mutex_);
    open_.erase(handle);
    ++cancelled_;
    changed_.notify_all();
  }

  void tokenize(actors::TokenizeRequest request, std::function<void(Result<actors::TokenizeResponse>)> done) override {
    if (const auto* text = std::get_if<actors::TextPrompt>(&request.prompt)) {
      done(
          actors::TokenizeResponse{std::vector<std::int32_t>(text->text.begin(), text->text.end()), info_.max_context});
    } else {
      done(actors::TokenizeResponse{{1, 2, 3}, info_.max_context});
    }
  }
  void detokenize(std::vector<std::int32_t> tokens, std::function<void(Result<std::string>)> done) override {
    done(std::string(tokens.begin(), tokens.end()));
  }
  void stop(std::chrono::milliseconds /*deadline*/) override {}

  // Waits until `count` requests are open and returns them; fewer when they do not come within a generous time.
  std::vector<Open> wait_for_open(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return open_.size() >= count; });
    std::vector<Open> all;
    for (const auto& [handle, open] : open_) all.push_back(open);
    return all;
  }
  // Removes and returns the oldest open request; nullopt when none comes within a generous time.
  std::optional<Open> take_open() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return !open_.empty(); })) return std::nullopt;
    auto taken = open_.extract(open_.begin());
    return std::move(taken.mapped());
  }
  std::optional<Open> take_open_now() {
    const std::scoped_lock lock(mutex_);
    if (open_.empty()) return std::nullopt;
    return std::move(open_.extract(open_.begin()).mapped());
  }
  bool wait_for_cancelled(int count, std::chrono::milliseconds patience = kPatience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return cancelled_ >= count; });
  }

  static void answer(const actors::GenerationRequest& request, actors::ResponseSink& sink) {
    actors::GenerationStarted started;
    for (std::size_t i = 0; i < request.prompts.size(); ++i) started.prompt_token_ids.push_back({7, 8});
    sink.on_started(started);
    const int choices = static_cast<int>(request.prompts.size()) * request.n;
    for (int index = 0; index < choices; ++index) {
      const char* const words[] = {"one", " two", " three"};
      for (int i = 0; i < 3; ++i) {
        actors::ChoiceDelta delta;
        delta.index = index;
        delta.text = words[i];
        delta.token_ids = {i + 1};
        if (request.sampling.logprobs >= 0) {
          actors::TokenLogprob token;
          token.token = i + 1;
          token.text = words[i];
          token.logprob = -0.5F;
          for (int k = 0; k < request.sampling.logprobs; ++k) {
            token.top.push_back({k == 0 ? i + 1 : 100 + k, k == 0 ? words[i] : "alt" + std::to_string(k), -0.5F - k});
          }
          delta.logprobs.push_back(token);
        }
        if (i == 2) delta.finish = actors::FinishReason::kStop;
        sink.on_delta(std::move(delta));
      }
    }
    sink.on_finished({2 * static_cast<std::int64_t>(request.prompts.size()), std::int64_t{3} * choices});
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};

  actors::ServingInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  actors::HealthReport health_{actors::HealthState::kReady, {}};
  std::map<actors::RequestHandle, Open> open_;
  actors::RequestHandle last_handle_ = 0;
  int cancelled_ = 0;
};

}  // namespace hotset::api
