// What selection costs on the CPU, in one layer, beside the dense attention that it saves: scores, top-k, and attention
// over the selection.
//
//   selection_cpu [--threads N] [--length TOKENS] [--budget TOKENS] [--clock wall|cpu]
//
// First the shapes of the default model (SmolLM2-135M: 9 heads on 3 KV heads of 64; rank 16; Quest in blocks of 16),
// one decode step. Then the lightning indexer of DeepSeek-V3.2 (64 heads of 128): one decode step, and a prompt's chunk
// of 64 queries. Each figure is the best of several runs; on a busy machine `--threads 1 --clock cpu` leaves out the
// time in which other processes had the core.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace hotset::kernels {
namespace {

bool g_cpu_clock = false;

double now_us() {
  if (g_cpu_clock) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC * 1e6;
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best time of one call, for about a third of a second.
double best_us(const std::function<void()>& work) {
  double best = 1e30;
  for (double spent = 0; spent < 3e5;) {
    const double begin = now_us();
    work();
    const double took = now_us() - begin;
    best = std::min(best, took);
    spent += took + 1;
  }
  return best;
}

std::vector<float> random_floats(std::int64_t count) {
  static std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

// Metadata pages of one sequence, and the arrays of `rows` queries that see all of it.
struct ScoreBed {
  std::vector<std::byte> storage;
  std::vector<const std::byte*> pages;
  std::vector<float> basis, scores;
  std::vector<std::int64_t> query_rows, lengths, offsets;
  ScoredRows rows;
  double store_us = 0;  // per token

  ScoreBed(Backend& backend, const MetadataGeometry& geometry, std::int64_t length, std::int64_t queries)
      : storage(static_cast<std::size_t>(pages_for_tokens(length) * geometry.page_bytes())),
        basis(random_floats(std::int64_t{geometry.kv_heads} * geometry.dim * geometry.rank)),
        scores(static_cast<std::size_t>(length * queries)),
        lengths(static_cast<std::size_t>(queries), length),
        offsets(static_cast<std::size_t>(queries), 0) {
    const std::int64_t width = std::int64_t{geometry.kv_heads} * geometry.dim;
    const std::vector<float> keys = random_floats(length * width);
    std::vector<std::byte*> targets;
    std::vector<std::int32_t> places;
    for (std::int64_t token = 0; token < length; ++token) {
      targets.push_back(storage.data() + token / kPageTokens * geometry.page_bytes());
      places.push_back(static_cast<std::int32_t>(token % kPageTokens));
      if (token % kPageTokens == 0) pages.push_back(targets.back());
    }
    store_us =
        best_us([&] {
          backend.store_metadata({geometry, keys.data(), width, basis.data(), targets.data(), places.data(), length});
        }) /
        static_cast<double>(length);
    for (std::int64_t query = 0; query < queries; ++query) query_rows.push_back(query);
    rows = {geometry, query_rows.data(), lengths.data(), pages.data(), offsets.data(), queries, scores.data(), length};
  }
};

double top_k_us(Backend& backend, const ScoreBed& bed, std::int64_t candidates, std::int32_t budget) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(budget));
  std::int32_t count = 0;
  TopKParams params;
  params.scores = bed.scores.data();
  params.stride = candidates;
  params.lengths = &candidates;
  params.rows = 1;
  params.k = &budget;
  params.out = out.data();
  params.out_stride = budget;
  params.counts = &count;
  return best_us([&] { backend.top_k(params); });
}

// Attention of one query over `selected` of `length` float32 rows of SmolLM2, evenly spread.
double attention_us(Backend& backend, std::int64_t length, std::int64_t selected) {
  const KvGeometry geometry{1, 3, 64, 64, KvGeometry::Layout::kGrouped, KvDType::kF32};
  std::vector<std::byte> pool(static_cast<std::size_t>(length * geometry.row_bytes()));
  const std::vector<float> k = random_floats(length * 192);
  std::vector<std::byte*> targets;
  for (std::int64_t i = 0; i < length; ++i) targets.push_back(pool.data() + i * geometry.row_bytes());
  backend.store_rows({geometry, k.data(), 192, k.data(), 192, targets.data(), length});
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < selected; ++i) slots.push_back(i * length / selected);
  const std::int64_t offsets[2] = {0, selected};
  const std::vector<float> q = random_floats(576);
  std::vector<float> out(576);
  SlotAttentionParams params;
  params.geometry = geometry;
  params.q = q.data();
  params.q_stride = params.out_stride = 576;
  params.pool = pool.data();
  params.slots = slots.data();
  params.slot_offsets = offsets;
  params.out = out.data();
  params.rows = 1;
  params.heads = 9;
  params.scale = 0.125F;
  return best_us([&] { backend.slot_attention(params); });
}

void default_model(Backend& backend, std::int64_t length, std::int64_t budget) {
  std::printf("SmolLM2, one query over %lld tokens, float32 rows; us\n", static_cast<long long>(length));
  const double dense = attention_us(backend, length, length);
  const double sparse = attention_us(backend, length, budget);
  std::printf("%34s %9.1f\n%34s %9.1f\n", "dense attention", dense, "attention over the budget", sparse);
  const std::vector<float> q = random_floats(576);
  const auto print = [&](const char* name, const ScoreBed& bed, double scores, double top_k) {
    std::printf("%34s %9.1f   top-k %6.1f   with the attention %5.1f %% of dense   store %.3f a token\n", name, scores,
                top_k, 100 * (scores + top_k + sparse) / dense, bed.store_us);
  };
  {
    const ScoreBed bed(backend, {MetadataGeometry::Kind::kLowRankKeys, 3, 64, 16, 1, KvDType::kF32}, length, 1);
    const double scores =
        best_us([&] { backend.low_rank_scores({bed.rows, q.data(), 576, bed.basis.data(), 9, 0.125F}); });
    print("low-rank scores, rank 16", bed, scores, top_k_us(backend, bed, length, static_cast<std::int32_t>(budget)));
  }
  const ScoreBed bed(backend, {MetadataGeometry::Kind::kBlockBounds, 3, 64, 0, 16, KvDType::kF32}, length, 1);
  const std::int64_t first = 1;
  const std::int64_t last = std::max<std::int64_t>(length / 16 - 5, 1);
  for (const auto& [name, combine] :
       {std::pair{"Quest scores, max", HeadCombine::kMax}, std::pair{"Quest scores, softmax", HeadCombine::kSoftmax}}) {
    const double scores = best_us(
        [&, with = combine] { backend.block_scores({bed.rows, q.data(), 576, &first, &last, 9, with, 0.125F}); });
    print(name, bed, scores, top_k_us(backend, bed, length / 16, static_cast<std::int32_t>(budget / 16)));
  }
}

void indexer(Backend& backend, std::int64_t length) {
  constexpr std::int32_t kHeads = 64;
  constexpr std::int32_t kDim = 128;
  std::printf("Lightning indexer, 64 heads of 128, over %lld tokens\n", static_cast<long long>(length));
  for (const auto& [name, dtype] :
       {std::pair{"f32", KvDType::kF32}, std::pair{"bf16", KvDType::kBF16}, std::pair{"fp8", KvDType::kFp8}})
    for (const std::int64_t queries : {1, 64}) {
      const ScoreBed bed(backend, {MetadataGeometry::Kind::kIndexKeys, 1, kDim, 0, 1, dtype}, length, queries);
      const std::vector<float> q = random_floats(queries * kHeads * kDim);
      const std::vector<float> weights = random_floats(queries * kHeads);
      const double us = best_us(
          [&] { backend.index_scores({bed.rows, q.data(), std::int64_t{kHeads} * kDim, weights.data(), kHeads}); });
      std::printf("%24s %4s x %2lld %9.1f us %8.1f GMAC/s   store %.3f us a token\n", "scores,", name,
                  static_cast<long long>(queries), us, static_cast<double>(queries * length) * kHeads * kDim / us / 1e3,
                  bed.store_us);
    }
}

int main_of(const std::vector<std::string_view>& arguments) {
  std::int64_t threads = 1;
  std::int64_t length = 8192;
  std::int64_t budget = 1024;
  for (std::size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string value(arguments[i + 1]);
    if (arguments[i] == "--threads") threads = std::max(1L, std::atol(value.c_str()));
    if (arguments[i] == "--length") length = std::max(256L, std::atol(value.c_str()));
    if (arguments[i] == "--budget") budget = std::max(16L, std::atol(value.c_str()));
    if (arguments[i] == "--clock") g_cpu_clock = value == "cpu";
  }
  const std::unique_ptr<Backend> backend = make_cpu_backend(static_cast<int>(threads));
  std::printf("%s\n", backend->description().c_str());
  default_model(*backend, length, std::min(budget, length));
  indexer(*backend, length);
  return 0;
}

}  // namespace
}  // namespace hotset::kernels

int main(int argc, char** argv) { return hotset::kernels::main_of({argv + 1, argv + argc}); }
