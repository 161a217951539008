// What the tests of the control plane share: a byte tokenizer, a scripted executor, a sink that records.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/requests.h"
#include "model/step_executor.h"
#include "model/tokenizer/tokenizer.h"

namespace hotset::actors::fakes {

// Byte-level BPE without merges: token id = byte; then <s> (256), </s> (257), <|end|> (258), all special.
inline constexpr std::int32_t kBos = 256;
inline constexpr std::int32_t kEos = 257;
inline constexpr std::int32_t kEnd = 258;
inline constexpr std::int32_t kVocabulary = 259;

inline std::string utf8(int code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

inline std::shared_ptr<const model::Tokenizer> byte_tokenizer(bool add_bos = false) {
  nlohmann::ordered_json vocab;
  int extra = 0;
  for (int byte = 0; byte < 256; ++byte) {  // GPT-2's table: printable bytes stand for themselves
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[utf8(plain ? byte : 256 + extra++)] = byte;
  }
  nlohmann::ordered_json json;
  json["version"] = "1.0";
  int id = kBos;
  for (const char* text : {"<s>", "</s>", "<|end|>"}) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  json["post_processor"] = nullptr;
  json["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"vocab", vocab},
                   {"merges", nlohmann::ordered_json::array()}};
  auto tokenizer = model::load_tokenizer_json(
      json.dump(), {.bos_token = "<s>", .eos_token = "</s>", .add_bos = add_bos, .add_eos = false});
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return tokenizer.value();
}

inline std::vector<std::int32_t> bytes_of(std::string_view text) {
  std::vector<std::int32_t> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

// Samples 'a' + (position mod 26) after the row at `position`; scores every prompt token with minus its value. Checks
// that the rows of a sequence come in order.
class ScriptedExecutor : public model::StepExecutor {
 public:
  model::StepResult run(const model::StepPlan& plan) override {
    ++steps;
    if (throw_at == steps) throw std::runtime_error("scripted");
    model::StepResult out;
    out.step = plan.step;
    for (const model::SequenceStep& step : plan.sequences) {
      model::SequenceState& state = *step.state;
      EXPECT_EQ(state.kv.length, step.first_position);
      state.kv.length += step.rows;
      rows += step.rows;
      model::SequenceResult one;
      one.id = state.kv.id;
      if (step.prompt_logprobs >= 0) {
        for (std::int32_t row = 0; row < step.rows; ++row) {
          const bool last = row + 1 == step.rows;
          const std::int32_t token = last ? step.next_token : step.tokens[static_cast<std::size_t>(row) + 1];
          if (token >= 0)
            one.prompt_logprobs.push_back({.token = token, .logprob = -static_cast<float>(token), .top = {}});
        }
      }
      if (step.sample) {
        one.sampled = true;
        one.token.token = script ? script(state.kv.id, state.kv.length - 1)
                                 : static_cast<std::int32_t>('a' + (state.kv.length - 1) % 26);
        one.token.logprob = -0.5F;
      }
      if (fail_next && one.sampled) {
        fail_next = false;
        one.sampled = false;
        one.error = "not a number";
      }
      out.sequences.push_back(std::move(one));
    }
    out.verified = std::exchange(verified, {});
    out.stats.decode_rows = static_cast<std::int64_t>(plan.sequences.size());
    return out;
  }

  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t throw_at = -1;
  bool fail_next = false;
  model::VerifyOutcome verified;  // of the next step
  std::function<std::int32_t(SequenceId, std::int64_t position)> script;
};

// The same answers, from a device that runs its steps elsewhere: begun is not done.
class PendingExecutor : public ScriptedExecutor {
 public:
  // Steps end when they are waited for.
  std::shared_ptr<const model::PendingStep> begin(const model::StepPlan& plan) override {
    EXPECT_EQ(ScriptedExecutor::begin(plan), nullptr);
    most_begun = std::max(most_begun, ++begun);
    return std::make_shared<Step>(steps == break_at);
  }
  model::StepResult finish() override {
    --begun;
    return ScriptedExecutor::finish();
  }

  std::int64_t begun = 0, most_begun = 0;
  std::int64_t break_at = -1;  // waiting for that step throws

 private:
  class Step final : public model::PendingStep {
   public:
    explicit Step(bool breaks) : breaks_(breaks) {}
    void wait() const override {
      if (breaks_) throw std::runtime_error("scripted");
    }

   private:
    bool breaks_;
  };
};

class RecordingSink final : public ResponseSink {
 public:
  void on_started(GenerationStarted value) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(started.has_value());
    EXPECT_FALSE(ended());
    started = std::move(value);
  }
  void on_delta(ChoiceDelta delta) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(started.has_value());
    EXPECT_FALSE(ended());
    const auto index = static_cast<std::size_t>(delta.index);
    if (choices.size() <= index) choices.resize(index + 1);
    ChoiceDelta& choice = choices[index];
    EXPECT_FALSE(choice.finish.has_value());
    choice.text += delta.text;
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    choice.logprobs.insert(choice.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    choice.finish = delta.finish;
    pieces.push_back(delta.text);
    changed_.notify_all();
  }
  void on_finished(GenerationUsage value) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended());
    usage = value;
    changed_.notify_all();
  }
  void on_error(Error value) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended());
    error = std::move(value);
    changed_.notify_all();
  }
  void wait_until_ended() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended(); });
  }
  void wait_for_text() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !pieces.empty() || ended(); });
  }
  [[nodiscard]] bool ended() const { return usage.has_value() || error.has_value(); }

  std::optional<GenerationStarted> started;
  std::vector<ChoiceDelta> choices;  // deltas of each choice joined
  std::vector<std::string> pieces;
  std::optional<GenerationUsage> usage;
  std::optional<Error> error;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace hotset::actors::fakes
