#include "benchmarks/fidelity_needle.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "core/concat.h"
#include "core/kv_geometry.h"

namespace hotset::fidelity {
namespace {

struct Fact {
  const char* colour;
  const char* code;
};
// One per depth, so that no depth's result hangs on one word.
constexpr std::array kFacts{Fact{"blue", "7319"},   Fact{"red", "4086"},   Fact{"green", "9527"}, Fact{"white", "1648"},
                            Fact{"yellow", "5290"}, Fact{"black", "8731"}, Fact{"grey", "3462"},  Fact{"brown", "6905"},
                            Fact{"purple", "2174"}, Fact{"orange", "9641"}};

using Tokens = std::vector<std::int32_t>;

Tokens encode(const model::Tokenizer& tokenizer, const std::string& text) {
  auto tokens = tokenizer.encode(text);
  if (!tokens.ok()) throw std::runtime_error(tokens.error().message);
  return std::move(tokens).value();
}

// The next end of a line from `at` on, if one is near.
std::int64_t line_end(const model::Tokenizer& tokenizer, std::span<const std::int32_t> filler, std::int64_t at) {
  constexpr std::int64_t kNear = 200;
  const std::int64_t end = std::min(at + kNear, static_cast<std::int64_t>(filler.size()));
  for (std::int64_t i = at; i < end; ++i) {
    const auto token = filler.subspan(static_cast<std::size_t>(i), 1);
    if (tokenizer.decode(token, true, model::TextPosition::kContinuation).ends_with('\n')) return i + 1;
  }
  return at;
}

// What is asked: the question's tokens, then the fact's.
struct Question {
  Tokens tokens;
  std::int64_t fact_begin = 0;
};

Question ask(const model::Tokenizer& tokenizer, const Fact& fact) {
  Question question;
  question.tokens = encode(tokenizer, concat("\n\nQuestion: What is the code of the ", fact.colour,
                                             " door?\nAnswer: The code of the ", fact.colour, " door is"));
  question.fact_begin = static_cast<std::int64_t>(question.tokens.size());
  const Tokens answer = encode(tokenizer, concat(" ", fact.code));
  question.tokens.insert(question.tokens.end(), answer.begin(), answer.end());
  if (static_cast<std::int64_t>(question.tokens.size()) > kNeedleTail)
    throw std::runtime_error("the needle test's question does not fit its tail");
  return question;
}

void add_depth(NeedleScore& score, std::span<const Engine::Score> fact, std::span<const std::int32_t> tokens) {
  double nll = 0;
  bool exact = true;
  for (std::size_t i = 0; i < fact.size(); ++i) {
    nll += fact[i].nll / static_cast<double>(fact.size());
    exact = exact && fact[i].argmax == tokens[i];
  }
  score.answered += exact ? 1 : 0;
  score.nll += nll;
  score.worst = std::max(score.worst, nll);
}

// The filler with the fact's sentence at `at`, `length` tokens in all.
Tokens hide(const model::Tokenizer& tokenizer, std::span<const std::int32_t> filler, const Fact& fact, std::int64_t at,
            std::int64_t length) {
  const Tokens needle = encode(tokenizer, concat("\nThe code of the ", fact.colour, " door is ", fact.code, ".\n\n"));
  Tokens text(filler.begin(), filler.begin() + at);
  text.insert(text.end(), needle.begin(), needle.end());
  text.insert(text.end(), filler.begin() + at, filler.end());
  text.resize(static_cast<std::size_t>(length));
  return text;
}

// Scores of the fact's tokens: dense, then of each configuration.
std::vector<std::vector<Engine::Score>> answer(Engine& engine, const Sequence& haystack, const Question& question) {
  const auto configurations = engine.configurations();
  const std::int64_t length = haystack->kv.length;
  std::vector<Engine::Row> rows(configurations.size() + 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].sequence = engine.start(length + kNeedleTail, haystack.get(), length);
    rows[i].configuration = i == 0 ? nullptr : &configurations[i - 1];
  }
  std::vector<std::vector<Engine::Score>> of_fact(rows.size());
  for (std::size_t i = 0; i + 1 < question.tokens.size(); ++i) {
    for (Engine::Row& row : rows) {
      row.token = question.tokens[i];
      row.target = question.tokens[i + 1];
    }
    const auto step = engine.decode(rows);
    if (static_cast<std::int64_t>(i) + 1 < question.fact_begin) continue;
    for (std::size_t row = 0; row < rows.size(); ++row) of_fact[row].push_back(step[row]);
  }
  return of_fact;
}

}  // namespace

NeedleResult measure_needle(Engine& engine, const model::Tokenizer& tokenizer, std::span<const std::int32_t> filler,
                            std::int64_t context) {
  const std::int64_t length = (context - kNeedleTail) / kPageTokens * kPageTokens;
  const auto places = filler.first(static_cast<std::size_t>(length - kNeedleTail / 2));  // the needle fits behind
  std::vector<NeedleScore> scores(engine.configurations().size() + 1);                   // the first: dense
  const std::int32_t mark = engine.mark();
  const Sequence base = engine.start(length);
  engine.prefill(base, filler, length, length);
  const std::int32_t base_mark = engine.mark();
  for (std::size_t depth = 0; depth < kFacts.size(); ++depth) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t wanted = static_cast<std::int64_t>(2 * depth + 1) * static_cast<std::int64_t>(places.size()) /
                                static_cast<std::int64_t>(2 * kFacts.size());
    const std::int64_t at = line_end(tokenizer, places, wanted);
    const Tokens text = hide(tokenizer, filler, kFacts[depth], at, length);
    const Sequence haystack = engine.start(length, base.get(), at / kPageTokens * kPageTokens);
    engine.prefill(haystack, text, length, length);
    const Question question = ask(tokenizer, kFacts[depth]);
    const auto of_fact = answer(engine, haystack, question);
    const auto fact_tokens = std::span(question.tokens).subspan(static_cast<std::size_t>(question.fact_begin));
    for (std::size_t i = 0; i < scores.size(); ++i) add_depth(scores[i], of_fact[i], fact_tokens);
    std::fprintf(stderr, "needle at token %lld of %lld: dense %.3f so far, %.0f s\n", static_cast<long long>(at),
                 static_cast<long long>(length), scores.front().nll / static_cast<double>(depth + 1),
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    engine.release(base_mark);
  }
  engine.release(mark);
  for (NeedleScore& score : scores) score.nll /= static_cast<double>(kFacts.size());
  return {.depths = static_cast<std::int32_t>(kFacts.size()),
          .dense = scores.front(),
          .scores = {scores.begin() + 1, scores.end()}};
}

}  // namespace hotset::fidelity
