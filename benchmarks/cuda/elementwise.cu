// Elementwise kernels, the rows and lists of a decode layer, and sampling by rows: time of a graph replay beside bytes
// / 4.2 TB/s.
//
//   elementwise
//
// A buffer of 256 MB is written before each replay: nothing lies in the L2. A replay of few rows is launch time; what
// new rows take in a step is measured between reads of weights.
#include <cstdio>
#include <random>

#include "benchmarks/cuda/graph_time.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/load_keys.h"
#include "kernels/cuda/new_rows.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/slot_lists.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kHidden = 7168;
constexpr std::int64_t kIntermediate = 18'432;
constexpr std::int32_t kHeads = 40;
constexpr std::int32_t kHeadDim = 128;
constexpr std::int32_t kRank = 32;
constexpr std::int64_t kProduct = 48 * kHeadDim;
constexpr std::int64_t kWeightWords = (std::int64_t{64} << 20) / 16;
constexpr std::int64_t kVocabulary = 129'280;
constexpr std::int64_t kMostRows = 4096;
constexpr std::int64_t kMostSampled = 256;
constexpr std::int64_t kLongest = 131'072;
constexpr std::int64_t kMostListed = 128;
constexpr double kBytesPerUs = 4.2e6;
constexpr int kRepeats = 30;

// As a product of few rows reads its weights: the next launch may start early, and its own loads do not wait for the
// one before.
__global__ void __launch_bounds__(512) read_weights(const uint4* weights, float* product) {
  let_next_kernel_start();
  std::uint32_t sum = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * 4;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4; i < kWeightWords; i += step) {
    uint4 words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = weights[i + k];
#pragma unroll
    for (int k = 0; k < 4; ++k) sum |= words[k].x | words[k].y | words[k].z | words[k].w;
  }
  wait_for_kernels_before();
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at < kProduct) product[at] = static_cast<float>(sum);
}

class Bench {
 public:
  Bench() {
    dirty_.fill_bytes(0);
    activations_.fill_bytes(0);
    table_.fill_bytes(0);
    std::vector<float> ones(kHidden, 1.0F);
    weight_.upload(ones.data(), ones.size());
    frequencies_.upload(ones.data(), kHeadDim / 2);
    std::vector<std::int64_t> positions(kMostRows);
    std::vector<std::int32_t> tokens(kMostRows);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<std::int64_t>(i) * 31;
      tokens[i] = static_cast<std::int32_t>(i * 7919 % kVocabulary);
    }
    positions_.upload(positions.data(), positions.size());
    tokens_.upload(tokens.data(), tokens.size());
    std::vector<std::int32_t> pages(kLongest / kPageTokens), counts(2 * kMostListed, 128), blocks(kMostListed * 2048);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i * 1021 % pages.size());
    for (std::size_t i = 0; i < kMostListed; ++i) counts[i] = 2048;
    // Ascending in a row of either list.
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i % 2048 * 3);
    pages_.upload(pages.data(), pages.size());
    counts_.upload(counts.data(), counts.size());
    blocks_.upload(blocks.data(), blocks.size());
    std::vector<HotRow> tables(kMostListed * 2);
    for (HotRow& table : tables) table.device_pages = pages_.data();
    tables_.upload(tables.data(), tables.size());
    const std::vector<std::int32_t> lengths(kMostListed, kLongest);
    lengths_.upload(lengths.data(), lengths.size());
    std::mt19937 engine(1);
    std::normal_distribution<float> normal(0.0F, 3.0F);
    std::vector<float> logits(kMostSampled * kVocabulary);
    for (float& x : logits) x = normal(engine);
    logits_.upload(logits.data(), logits.size());
  }

  void run() {
    std::printf("%-34s %6s %10s %10s %7s %8s\n", "kernel", "rows", "us", "floor us", "ratio", "GB/s");
    for (const std::int64_t rows : {1, 32, 256, 4096}) elementwise(rows);
    for (const std::int64_t rows : {1, 32, 128, 256}) new_rows(rows);
    in_a_step();
    for (const std::int64_t rows : {1, 32, 128}) slot_lists(rows);
    keys();
    for (const std::int64_t rows : {1, 16, 32, 64, 256}) {
      SamplingRow greedy;
      greedy.temperature = 0.0F;
      sampling("sampling, greedy", rows, greedy);
      SamplingRow plain;
      sampling("sampling, temperature", rows, plain);
      SamplingRow filtered;
      filtered.top_k = 50;
      filtered.top_p = 0.95F;
      sampling("sampling, top-k 50 and top-p 0.95", rows, filtered);
      SamplingRow nucleus;
      nucleus.top_p = 0.95F;
      nucleus.alternatives = 20;
      sampling("sampling, top-p 0.95, 20 logprobs", rows, nucleus);
    }
  }

 private:
  template <class Launch>
  void row(const char* name, std::int64_t rows, double bytes, const Launch& launch) {
    launch(stream_.get());  // loads the kernel
    const double us = graph_time_us(stream_.get(), kRepeats, launch, [&](cudaStream_t stream) {
      HOTSET_CUDA_CHECK(cudaMemsetAsync(dirty_.data(), 0, dirty_.bytes(), stream));
    });
    const double floor = bytes / kBytesPerUs;
    std::printf("%-34s %6lld %10.2f %10.2f %7.2f %8.0f\n", name, static_cast<long long>(rows), us, floor, us / floor,
                bytes / us * 1e-3);
  }

  void elementwise(std::int64_t rows) {
    constexpr ActivationType kType = ActivationType::kBF16;
    std::uint16_t* const first = activations_.data();
    std::uint16_t* const second = first + kMostRows * 2 * kIntermediate;
    const double hidden_bytes = 2.0 * static_cast<double>(rows) * kHidden;
    row("RMS norm, 7168 bf16", rows, 2 * hidden_bytes, [&](Stream stream) {
      launch_rms_norm({first, kType, 0, weight_.data(), second, kType, 0, rows, kHidden, 1e-6F}, stream);
    });
    row("add and RMS norm, 7168 bf16", rows, 4 * hidden_bytes, [&](Stream stream) {
      launch_add_rms_norm({first, 0, second, kType, 0, weight_.data(), first, 0, kType, rows, kHidden, 1e-6F}, stream);
    });
    for (const bool norm : {false, true}) {
      row(norm ? "head norm and RoPE, 40 x 128 bf16" : "RoPE, 40 x 128 bf16", rows,
          4.0 * static_cast<double>(rows) * kHeads * kHeadDim, [&](Stream stream) {
            launch_rope({first, kType, 0, positions_.data(), frequencies_.data(), rows, kHeads, kHeadDim, 0, kHeadDim,
                         1.0F, norm ? weight_.data() : nullptr, 1e-6F},
                        stream);
          });
    }
    row("SiLU gate, 18432 bf16", rows, 6.0 * static_cast<double>(rows) * kIntermediate, [&](Stream stream) {
      launch_silu_gate({first, 2 * kIntermediate, first + kIntermediate, 2 * kIntermediate, kType, second, 0, kType,
                        rows, kIntermediate},
                       stream);
    });
    row("embedding, 7168 bf16", rows, 2 * hidden_bytes, [&](Stream stream) {
      launch_embed({table_.data(), kType, tokens_.data(), second, kType, 0, rows, kVocabulary, kHidden}, stream);
    });
  }

  // Of Llama-3.1-8B's shape. Sequences of one table of pages, whose rows overlap: the writes are as many as of
  // sequences apart.
  [[nodiscard]] GroupedRowsParams grouped_rows(std::int64_t rows, KvDType dtype, bool low_rank) {
    GroupedRowsParams params;
    params.geometry = {1, 8, kHeadDim, kHeadDim, KvGeometry::Layout::kGrouped, dtype};
    params.targets = {tables_.data(), 1, positions_.data(), pool_.data()};
    params.rotation = {frequencies_.data(), kHeadDim, 1.0F};
    auto* const product = reinterpret_cast<float*>(activations_.data());
    params.q = product;
    params.k = product + 32 * kHeadDim;
    params.v = product + 40 * kHeadDim;
    params.q_stride = params.k_stride = params.v_stride = kProduct;
    params.q_out = product;
    params.q_out_stride = kProduct;
    params.rows = rows;
    params.heads = 32;
    if (low_rank) {
      params.metadata = {{.kind = MetadataGeometry::Kind::kLowRankKeys, .kv_heads = 8, .dim = kHeadDim, .rank = kRank},
                         {metadata_.data(), pages_.data(), 1, positions_.data()},
                         basis_.data()};
    }
    return params;
  }
  [[nodiscard]] LatentRowsParams latent_rows(std::int64_t rows, KvDType dtype, bool index_keys) {
    LatentRowsParams params;
    params.geometry = {1, 1, 576, 512, KvGeometry::Layout::kLatent, dtype};
    params.targets = {tables_.data(), 1, positions_.data(), pool_.data()};
    params.rotation = {frequencies_.data(), 64, 1.0F};
    auto* const product = reinterpret_cast<float*>(activations_.data());
    params.in = product;
    params.in_stride = 576;
    params.norm = weight_.data();
    params.rows = rows;
    if (index_keys) {
      params.metadata = {{.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = kHeadDim, .dtype = dtype},
                         {metadata_.data(), pages_.data(), 1, positions_.data()}};
      params.index_keys = {product + kMostRows * 576, kHeadDim, weight_.data(), weight_.data(), 1e-6F, params.rotation};
    }
    return params;
  }

  void new_rows(std::int64_t rows) {
    for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
      const bool fp8 = dtype == KvDType::kFp8;
      GroupedRowsParams grouped = grouped_rows(rows, dtype, false);
      const double row_bytes = 4.0 * kHeadDim * (48 + 32) + static_cast<double>(grouped.geometry.row_bytes());
      const auto bytes = [&](double of_row) { return static_cast<double>(rows) * of_row; };
      row(fp8 ? "new rows, 32/8 x 128, FP8" : "new rows, 32/8 x 128, bf16", rows, bytes(row_bytes),
          [&](Stream stream) { launch_grouped_rows(grouped, stream); });
      grouped.q_norm = grouped.k_norm = weight_.data();
      row(fp8 ? "new rows, norm, FP8" : "new rows, norm, bf16", rows, bytes(row_bytes),
          [&](Stream stream) { launch_grouped_rows(grouped, stream); });
      const GroupedRowsParams low_rank = grouped_rows(rows, dtype, true);
      row(fp8 ? "new rows, low-rank keys, FP8" : "new rows, low-rank keys, bf16", rows,
          bytes(row_bytes + 8 * (kRank / 2 + 2)) + 4.0 * 8 * kHeadDim * kRank,
          [&](Stream stream) { launch_grouped_rows(low_rank, stream); });
      const LatentRowsParams latent = latent_rows(rows, dtype, false);
      const double latent_bytes = 4.0 * 576 + static_cast<double>(latent.geometry.row_bytes());
      row(fp8 ? "new rows, latent 576, FP8" : "new rows, latent 576, bf16", rows, bytes(latent_bytes),
          [&](Stream stream) { launch_latent_rows(latent, stream); });
      const LatentRowsParams indexed = latent_rows(rows, dtype, true);
      row(fp8 ? "new rows, latent, index keys, FP8" : "new rows, latent, index keys, bf16", rows,
          bytes(latent_bytes + 4.0 * kHeadDim +
                static_cast<double>(indexed.metadata.geometry.page_bytes() / kPageTokens)),
          [&](Stream stream) { launch_latent_rows(indexed, stream); });
    }
  }

  // What a launch adds to a step: layers that read weights of 64 MB each, with and without it behind them.
  template <class Launch>
  double layer_us(const Launch& launch) {
    constexpr int kLayers = 32;
    return graph_time_us(
               stream_.get(), kRepeats,
               [&](cudaStream_t stream) {
                 for (int layer = 0; layer < kLayers; ++layer) {
                   launch_dependent(read_weights, dim3(264), dim3(512), 0, 0, stream,
                                    reinterpret_cast<const uint4*>(dirty_.data()) + layer % 4 * kWeightWords,
                                    reinterpret_cast<float*>(activations_.data()));
                   launch(stream);
                 }
               },
               [](cudaStream_t) {}) /
           kLayers;
  }
  void in_a_step() {
    const double alone = layer_us([](cudaStream_t) {});
    std::printf("\nus a layer behind a product that reads 64 MB in %.2f us (bf16 rows)\n%-34s %6s %10s %10s\n", alone,
                "kernel", "rows", "ordinary", "overlapped");
    for (const std::int64_t rows : {1, 8, 32}) {
      const auto line = [&](const char* name, auto params, const auto& launch) {
        double us[2];
        for (const bool follows : {false, true}) {
          params.follows_product = follows;
          us[follows ? 1 : 0] = layer_us([&](cudaStream_t stream) { launch(params, stream); }) - alone;
        }
        std::printf("%-34s %6lld %10.2f %10.2f\n", name, static_cast<long long>(rows), us[0], us[1]);
      };
      line("new rows, 32/8 x 128", grouped_rows(rows, KvDType::kBF16, false), launch_grouped_rows);
      line("new rows, low-rank keys", grouped_rows(rows, KvDType::kBF16, true), launch_grouped_rows);
      line("new rows, latent 576", latent_rows(rows, KvDType::kBF16, false), launch_latent_rows);
      line("new rows, latent, index keys", latent_rows(rows, KvDType::kBF16, true), launch_latent_rows);
    }
    std::printf("\n");
  }

  void slot_lists(std::int64_t rows) {
    for (const std::int64_t count : {std::int64_t{2048}, kLongest}) {
      for (const std::int32_t block : {1, 16}) {
        const bool everything = count == kLongest;
        if (everything && block > 1) continue;
        SlotListsParams params;
        params.rows = tables_.data();
        params.lengths = lengths_.data();
        params.blocks = everything ? nullptr : blocks_.data();
        params.block_counts = counts_.data() + (block == 1 ? 0 : kMostListed);
        params.slots = slots_.data();
        params.counts = list_counts_.data();
        params.slot_stride = params.max_count = count;
        params.max_selected = static_cast<std::int32_t>(2048 / block);
        params.block_tokens = block;
        params.batch = static_cast<std::int32_t>(rows);
        const double bytes = 4.0 * static_cast<double>(rows) *
                             static_cast<double>(everything ? count + count / kPageTokens : count + 2048 / block);
        row(everything   ? "slot lists, all of 131072"
            : block == 1 ? "slot lists, 2048 of blocks of 1"
                         : "slot lists, 128 blocks of 16",
            rows, bytes, [&](Stream stream) { launch_slot_lists(params, stream); });
      }
    }
  }

  void keys() {
    for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
      DeviceLoadKeysParams params;
      params.geometry = {1, 1, 576, 512, KvGeometry::Layout::kLatent, dtype};
      params.pool = pool_.data();
      params.pages = pages_.data();
      params.last = kLongest / 2;
      params.out = activations_.data();
      row(dtype == KvDType::kFp8 ? "keys of latent rows, FP8 to bf16" : "keys of latent rows, bf16", params.last,
          static_cast<double>(params.last) * static_cast<double>(2 * 576 + params.geometry.row_bytes()),
          [&](Stream stream) { launch_load_keys(params, stream); });
    }
  }

  // The floor: the logits once.
  void sampling(const char* name, std::int64_t rows, const SamplingRow& settings) {
    std::vector<SamplingRow> all(static_cast<std::size_t>(rows), settings);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].seed = i;
    settings_.upload(all.data(), all.size());
    SamplingParams params;
    params.logits = logits_.data();
    params.rows = rows;
    params.vocabulary = kVocabulary;
    params.settings = settings_.data();
    params.tokens = sampled_.data();
    params.usable = usable_.data();
    params.logprobs = logprobs_.data();
    params.top_ids = top_ids_.data();
    params.top_logprobs = top_logprobs_.data();
    row(name, rows, 4.0 * static_cast<double>(rows) * kVocabulary,
        [&](Stream stream) { launch_sampling(params, stream); });
  }

  OwnedStream stream_;
  DeviceBuffer<std::byte> dirty_{std::size_t{256} << 20};
  DeviceBuffer<std::uint16_t> activations_{kMostRows * 3 * kIntermediate};
  DeviceBuffer<std::uint16_t> table_{kVocabulary * kHidden};
  DeviceBuffer<float> weight_{kHidden}, frequencies_{kHeadDim / 2};
  DeviceBuffer<std::int64_t> positions_{kMostRows};
  DeviceBuffer<std::int32_t> tokens_{kMostRows};
  DeviceBuffer<std::byte> pool_{kLongest * 4096}, metadata_{kLongest * 512};
  DeviceBuffer<float> basis_{8 * kHeadDim * kRank};
  DeviceBuffer<HotRow> tables_{2 * kMostListed};
  DeviceBuffer<std::int32_t> pages_{kLongest / kPageTokens}, lengths_{kMostListed}, counts_{2 * kMostListed};
  DeviceBuffer<std::int32_t> blocks_{kMostListed * 2048}, slots_{kMostListed * kLongest}, list_counts_{kMostListed};
  DeviceBuffer<float> logits_{kMostSampled * kVocabulary};
  DeviceBuffer<SamplingRow> settings_{kMostSampled};
  DeviceBuffer<std::int32_t> sampled_{kMostSampled}, top_ids_{kMostSampled * kMostAlternatives};
  DeviceBuffer<std::uint8_t> usable_{kMostSampled};
  DeviceBuffer<float> logprobs_{kMostSampled}, top_logprobs_{kMostSampled * kMostAlternatives};
};

}  // namespace
}  // namespace hotset::kernels::cuda

int main() {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::puts("no GPU here");
    return 1;
  }
  hotset::kernels::cuda::Bench().run();
  return 0;
}
