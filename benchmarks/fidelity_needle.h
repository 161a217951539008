// Needle test: a made-up fact in one sentence, hidden at several depths of a long text, is asked for at the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "benchmarks/fidelity_engine.h"
#include "model/tokenizer/tokenizer.h"

namespace hotset::fidelity {

struct NeedleScore {
  std::int32_t answered = 0;  // questions whose greedy answer starts with the fact
  double nll = 0;             // of the facts' tokens, nats a token, mean over questions
  double difference = 0;      // of it from dense
  double error = 0;           // standard error of `difference`, from the depths' own differences
};

struct NeedleResult {
  std::int32_t questions = 0;  // several at each depth
  NeedleScore dense;
  std::vector<NeedleScore> scores;  // per configuration
};

inline constexpr std::int64_t kNeedleTail = 128;  // tokens of the context that hold question and fact

// `filler`: at least context - kNeedleTail tokens. The text with the needle is attended densely, as a prompt is;
// every token of the question and of the fact attends to its selection. The fact is teacher-forced: the greedy answer
// starts with it exactly when each of its tokens is the likeliest one after those before.
NeedleResult measure_needle(Engine& engine, const model::Tokenizer& tokenizer, std::span<const std::int32_t> filler,
                            std::int64_t context);

}  // namespace hotset::fidelity
