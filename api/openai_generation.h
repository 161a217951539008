// One running generation: takes the engine's events and answers the HTTP exchange with a stream or a whole body.
#pragma once

#include <memory>

#include "actors/requests.h"
#include "api/http_exchange.h"
#include "api/openai_response.h"

namespace hotset::api {

// The sink's functions may come from any thread; everything else happens on the exchange's service thread.
class Generation final : public actors::ResponseSink, public std::enable_shared_from_this<Generation> {
 public:
  Generation(ResponseShape shape, bool stream, std::shared_ptr<HttpExchange> exchange);

  void on_started(actors::GenerationStarted started) override;
  void on_delta(actors::ChoiceDelta delta) override;
  void on_finished(actors::GenerationUsage usage) override;
  void on_error(Error error) override;

 private:
  void start_stream();
  void finish(const actors::GenerationUsage& usage);
  void fail(const Error& error);

  const bool stream_;
  const std::shared_ptr<HttpExchange> exchange_;
  ResponseWriter writer_;
  bool stream_started_ = false;
  bool ended_ = false;
};

}  // namespace hotset::api
