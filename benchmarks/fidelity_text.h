// What selection costs on a text: the loss of its second half, dense and under each configuration.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "benchmarks/fidelity_engine.h"
#include "sparse/selection_observer.h"

namespace hotset::fidelity {

struct TextLoss {
  double nll = 0;         // nats a token, mean over the second half
  double difference = 0;  // from dense, share of it
  double error = 0;       // standard error of `difference`, from the tokens' own differences
  double mass = 0;        // mean share of the true attention mass, MassMeter
};

struct TextResult {
  double dense_nll = 0;
  std::int64_t scored = 0;       // tokens
  std::vector<TextLoss> losses;  // per configuration
};

// Tells the observer of the first `rows` selecting rows of one configuration.
struct Recording {
  sparse::SelectionObserver* observer = nullptr;  // null: no recording
  std::size_t configuration = 0;
  std::int64_t rows = 0;
};

// The half of a text of that many tokens, whole pages.
[[nodiscard]] std::int64_t half_of(std::int64_t tokens);

// The first half is attended densely; in the second half every row attends to its selection, teacher-forced. Row p
// scores token p + 1, so the first token that counts is the second half's second. The configurations' sequences share
// the first half's rows, which are the same for all, and run together. Progress goes to stderr.
TextResult measure_text(Engine& engine, std::span<const std::int32_t> tokens, const Recording& recording);

}  // namespace hotset::fidelity
