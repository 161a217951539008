#include "benchmarks/fidelity_text.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/kv_geometry.h"

namespace hotset::fidelity {
namespace {

class OneSequence final : public sparse::SelectionObserver {
 public:
  OneSequence(sparse::SelectionObserver& observer, SequenceId sequence, std::int64_t end)
      : observer_(observer), sequence_(sequence), end_(end) {}
  void observe(const sparse::SelectionRecord& record) override {
    if (record.sequence == sequence_ && record.position < end_) observer_.observe(record);
  }

 private:
  sparse::SelectionObserver& observer_;
  SequenceId sequence_;
  std::int64_t end_;
};

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TextLoss compare(std::span<const double> losses, std::span<const double> dense) {
  const double dense_nll = mean(dense);
  TextLoss out{.nll = mean(losses)};
  out.difference = (out.nll - dense_nll) / dense_nll;
  double squares = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double away = losses[i] - dense[i] - (out.nll - dense_nll);
    squares += away * away;
  }
  const auto count = static_cast<double>(losses.size());
  out.error = std::sqrt(squares / count / count) / dense_nll;
  return out;
}

// Time, and each configuration's difference from dense so far: a run of many minutes may be cut short.
void show_progress(std::chrono::steady_clock::time_point start, std::span<const std::vector<double>> losses,
                   std::span<const double> dense) {
  const std::size_t done = losses.empty() ? dense.size() : losses.front().size();
  if (done % 256 != 0 && done != dense.size()) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "%zu of %zu rows, %.0f s, %.0f s to go; from dense, %%:", done, dense.size(), seconds,
               seconds * static_cast<double>(dense.size() - done) / static_cast<double>(done));
  for (const auto& own : losses) std::fprintf(stderr, " %+.2f", 100 * compare(own, dense.first(done)).difference);
  std::fprintf(stderr, "\n");
}

}  // namespace

std::int64_t half_of(std::int64_t tokens) { return tokens / 2 / kPageTokens * kPageTokens; }

TextResult measure_text(Engine& engine, std::span<const std::int32_t> tokens, const Recording& recording) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t half = half_of(count);
  const auto start = std::chrono::steady_clock::now();
  const std::int32_t mark = engine.mark();
  const Sequence whole = engine.start(count);
  const std::vector<double> dense = engine.prefill(whole, tokens, count, half);
  std::fprintf(stderr, "dense: %.4f, %.0f s\n", mean(dense),
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());

  const auto configurations = engine.configurations();
  std::vector<Engine::Row> rows;
  for (const Configuration& configuration : configurations) {
    rows.push_back({.sequence = engine.start(count, whole.get(), half), .configuration = &configuration});
    engine.watch(rows.back().sequence);
  }
  std::shared_ptr<OneSequence> recorder;
  if (recording.observer != nullptr) {
    recorder = std::make_shared<OneSequence>(*recording.observer, rows[recording.configuration].sequence->kv.id,
                                             half + recording.rows);
  }
  engine.observe(recorder);
  std::vector<std::vector<double>> losses(rows.size());
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t at = half; at + 1 < count; ++at) {
    for (Engine::Row& row : rows) {
      row.token = tokens[static_cast<std::size_t>(at)];
      row.target = tokens[static_cast<std::size_t>(at) + 1];
    }
    const auto scores = engine.decode(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) losses[i].push_back(scores[i].nll);
    show_progress(begin, losses, dense);
  }
  engine.observe(nullptr);

  TextResult result{.dense_nll = mean(dense), .scored = static_cast<std::int64_t>(dense.size()), .losses = {}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    result.losses.push_back(compare(losses[i], dense));
    result.losses.back().mass = engine.mass().mean(rows[i].sequence->kv.id);
  }
  engine.release(mark);
  return result;
}

}  // namespace hotset::fidelity
