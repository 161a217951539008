#include "benchmarks/fidelity_needle.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/concat.h"
#include "core/kv_geometry.h"

namespace hotset::fidelity {
namespace {

struct Fact {
  const char* colour;
  const char* code;
};
// One per depth.
constexpr std::array kFacts{Fact{"blue", "7319"},   Fact{"red", "4086"},   Fact{"green", "9527"}, Fact{"white", "1648"},
                            Fact{"yellow", "5290"}, Fact{"black", "8731"}, Fact{"grey", "3462"},  Fact{"brown", "6905"},
                            Fact{"purple", "2174"}, Fact{"orange", "9641"}};

// Before "the code of the COLOUR door is": one wording more or less alone says little about a small model.
constexpr std::array kQuestions{"\n\nQuestion: What is the code of the COLOUR door?\nAnswer: The", "\n\nThe",
                                "\n\nTo sum up, the", "\n\nWhat is the code of the COLOUR door? The"};

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

Question ask(const model::Tokenizer& tokenizer, std::string text, const Fact& fact) {
  constexpr std::string_view kColour = "COLOUR";
  if (const auto at = text.find(kColour); at != text.npos) text.replace(at, kColour.size(), fact.colour);
  Question question;
  question.tokens = encode(tokenizer, concat(text, " code of the ", fact.colour, " door is"));
  question.fact_begin = static_cast<std::int64_t>(question.tokens.size());
  const Tokens answer = encode(tokenizer, concat(" ", fact.code));
  question.tokens.insert(question.tokens.end(), answer.begin(), answer.end());
  if (static_cast<std::int64_t>(question.tokens.size()) > kNeedleTail)
    throw std::runtime_error("the needle test's question does not fit its tail");
  return question;
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

struct DepthScore {
  std::int32_t answered = 0;
  double nll = 0;  // mean over the depth's questions
};

// Asks everything about one depth's fact: dense, then each configuration.
std::vector<DepthScore> ask_all(Engine& engine, const model::Tokenizer& tokenizer, const Sequence& haystack,
                                const Fact& fact) {
  std::vector<DepthScore> scores(engine.configurations().size() + 1);
  const std::int32_t mark = engine.mark();
  for (const char* text : kQuestions) {
    const Question question = ask(tokenizer, text, fact);
    const auto of_fact = answer(engine, haystack, question);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      bool exact = true;
      double nll = 0;
      for (std::size_t token = 0; token < of_fact[i].size(); ++token) {
        nll += of_fact[i][token].nll / static_cast<double>(of_fact[i].size());
        exact =
            exact && of_fact[i][token].argmax == question.tokens[static_cast<std::size_t>(question.fact_begin) + token];
      }
      scores[i].answered += exact ? 1 : 0;
      scores[i].nll += nll / static_cast<double>(kQuestions.size());
    }
    engine.release(mark);
  }
  return scores;
}

// `depths`: [depth][dense, then configurations].
NeedleScore summarise(const std::vector<std::vector<DepthScore>>& depths, std::size_t of) {
  NeedleScore out;
  const auto count = static_cast<double>(depths.size());
  for (const auto& depth : depths) {
    out.answered += depth[of].answered;
    out.nll += depth[of].nll / count;
    out.difference += (depth[of].nll - depth[0].nll) / count;
  }
  double squares = 0;
  for (const auto& depth : depths) {
    const double away = depth[of].nll - depth[0].nll - out.difference;
    squares += away * away;
  }
  out.error = std::sqrt(squares / (count - 1) / count);
  return out;
}

}  // namespace

NeedleResult measure_needle(Engine& engine, const model::Tokenizer& tokenizer, std::span<const std::int32_t> filler,
                            std::int64_t context) {
  const std::int64_t length = (context - kNeedleTail) / kPageTokens * kPageTokens;
  const auto places = filler.first(static_cast<std::size_t>(length - kNeedleTail / 2));  // the needle fits behind
  std::vector<std::vector<DepthScore>> depths;
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
    depths.push_back(ask_all(engine, tokenizer, haystack, kFacts[depth]));
    std::fprintf(stderr, "needle at token %lld of %lld, %.0f s; NLL:", static_cast<long long>(at),
                 static_cast<long long>(length),
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (const DepthScore& score : depths.back()) std::fprintf(stderr, " %.2f", score.nll);
    std::fprintf(stderr, "\n");
    engine.release(base_mark);
  }
  engine.release(mark);
  NeedleResult result{.questions = static_cast<std::int32_t>(kFacts.size() * kQuestions.size()),
                      .dense = summarise(depths, 0),
                      .scores = {}};
  for (std::size_t i = 1; i < depths.front().size(); ++i) result.scores.push_back(summarise(depths, i));
  return result;
}

}  // namespace hotset::fidelity
