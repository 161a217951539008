#include "api/openai_generation.h"

#include "api/openai_error.h"

namespace hotset::api {

Generation::Generation(ResponseShape shape, bool stream, std::shared_ptr<HttpExchange> exchange)
    : stream_(stream), exchange_(std::move(exchange)), writer_(std::move(shape)) {}

void Generation::on_started(actors::GenerationStarted started) {
  exchange_->post([self = shared_from_this(), started = std::move(started)]() mutable {
    if (self->ended_) return;
    self->writer_.started(std::move(started));
    if (self->stream_) self->start_stream();
  });
}

void Generation::on_delta(actors::ChoiceDelta delta) {
  exchange_->post([self = shared_from_this(), delta = std::move(delta)]() mutable {
    if (self->ended_) return;
    if (!self->stream_) {
      self->writer_.collect(std::move(delta));
    } else if (const auto chunk = self->writer_.chunk(delta)) {
      self->exchange_->send_event(*chunk);
    }
  });
}

void Generation::on_finished(actors::GenerationUsage usage) {
  exchange_->post([self = shared_from_this(), usage] {
    if (!self->ended_) self->finish(usage);
  });
}

void Generation::on_error(Error error) {
  exchange_->post([self = shared_from_this(), error = std::move(error)] {
    if (!self->ended_) self->fail(error);
  });
}

void Generation::start_stream() {
  stream_started_ = true;
  exchange_->start_events();
  for (const auto& chunk : writer_.first_chunks()) exchange_->send_event(chunk);
}

void Generation::finish(const actors::GenerationUsage& usage) {
  ended_ = true;
  if (!stream_) {
    exchange_->reply(HttpReply{.body = writer_.whole(usage), .headers = {}});
    return;
  }
  if (const auto chunk = writer_.usage_chunk(usage)) exchange_->send_event(*chunk);
  exchange_->send_event("[DONE]");
  exchange_->finish_events(true);
}

// Before the first byte of a stream an error is an ordinary reply; after it, an event and the end without [DONE].
void Generation::fail(const Error& error) {
  ended_ = true;
  if (!stream_started_) {
    exchange_->reply(error_reply(error));
    return;
  }
  exchange_->send_event(error_body(error));
  exchange_->finish_events(false);
}

}  // namespace hotset::api
