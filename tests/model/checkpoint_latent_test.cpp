// Checkpoints with latent attention: names, the order of RoPE's rows, FP8, draft layers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "core/fp8.h"
#include "model/checkpoint.h"
#include "model/float_conversion.h"
#include "model/weights.h"
#include "tests/model/safetensors_builder.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

using nlohmann::json;

std::filesystem::path unpacked(const std::string& name) {
  return std::filesystem::path(HOTSET_UNPACKED_FIXTURES) / name;
}

// Both fixtures: 4 heads of 32 + 16 channels, a latent of 64, index heads of 32 of which RoPE turns 16. Where the row
// `row` of what is handed out lies in the file, said without the code under test.
std::int64_t file_row(const std::string& canonical, std::int64_t row, bool interleaved_indexer) {
  std::int64_t head_rows = 0;
  std::int64_t first = 0;
  if (canonical.ends_with(".q_b_proj")) {
    head_rows = 48;
    first = 32;
  } else if (canonical.ends_with(".kv_a_proj_with_mqa")) {
    head_rows = 80;
    first = 64;
  } else if (interleaved_indexer && (canonical.ends_with("indexer.wq_b") || canonical.ends_with("indexer.wk") ||
                                     canonical.find("indexer.k_norm") != std::string::npos)) {
    head_rows = 32;
  } else {
    return row;
  }
  const auto channel = row % head_rows - first;
  if (channel < 0 || channel >= 16) return row;
  return row - channel + (channel < 8 ? 2 * channel : 2 * (channel - 8) + 1);
}

std::string file_name(const std::string& canonical) {
  const bool whole = canonical.ends_with(".bias") || canonical.ends_with("e_score_correction_bias");
  return (canonical == "lm_head" ? "" : "model.") + canonical + (whole ? "" : ".weight");
}

std::vector<float> floats_of(const kernels::MatrixView& view) { return *to_float32(view.type, view.data); }
std::vector<float> floats_of(const Tensor& tensor) {
  const auto type = tensor.dtype == "F32" ? kernels::WeightType::kF32 : kernels::WeightType::kBF16;
  return *to_float32(type, std::as_bytes(std::span(tensor.data)));
}

class CheckpointLatentTest : public ::testing::TestWithParam<const char*> {
 protected:
  CheckpointLatentTest() {
    for (const auto* file : {"config.json", "generation_config.json", "model.safetensors"}) {
      std::filesystem::copy_file(unpacked(GetParam()) / file, folder_.path() / file);
    }
    tensors_ = tensors_of(folder_.path() / "model.safetensors");
  }
  [[nodiscard]] static bool glm() { return std::string(GetParam()) == "tiny-glm-dsa"; }

  std::unique_ptr<Checkpoint> opened() {
    auto checkpoint = open_checkpoint(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
    return checkpoint.ok() ? std::move(checkpoint).value() : nullptr;
  }
  void expect_refused(const std::string& part) {
    auto checkpoint = open_checkpoint(folder_.path());
    ASSERT_FALSE(checkpoint.ok()) << part;
    EXPECT_NE(checkpoint.error().message.find(part), std::string::npos) << part << ": " << checkpoint.error().message;
  }
  void change_config(const json& change) {
    auto config = json::parse(read_bytes(folder_.path() / "config.json"));
    config.update(change);
    folder_.write("config.json", config.dump());
  }
  void write_model() { folder_.write("model.safetensors", file_of(tensors_)); }

  // `values` are the file's, by rows.
  static void expect_rows(Checkpoint& checkpoint, const ExpectedTensor& expected, const std::vector<float>& values) {
    const bool matrix = expected.shape.size() == 2;
    const auto given =
        matrix ? floats_of(checkpoint.matrix(expected.name).value()) : checkpoint.vector(expected.name).value();
    ASSERT_EQ(given.size(), values.size()) << expected.name;
    const auto width = matrix ? expected.shape[1] : 1;
    for (std::int64_t row = 0; row < expected.shape[0]; ++row) {
      const auto source = file_row(expected.name, row, glm());
      for (std::int64_t column = 0; column < width; ++column) {
        ASSERT_EQ(given[static_cast<std::size_t>(row * width + column)],
                  values[static_cast<std::size_t>(source * width + column)])
            << expected.name << " " << row << " " << column;
      }
    }
  }

  TemporaryFolder folder_;
  Tensors tensors_;
};

TEST_P(CheckpointLatentTest, EveryTensorOfTheFileIsExpectedAndInHalfSplitOrder) {
  auto checkpoint = opened();
  const auto expected = expected_tensors(checkpoint->config());
  EXPECT_EQ(expected.size(), glm() ? 182U : 149U);
  EXPECT_EQ(expected.size(), tensors_.size());
  EXPECT_TRUE(checkpoint->unused_tensors().empty());
  for (const auto& tensor : expected) expect_rows(*checkpoint, tensor, floats_of(tensors_.at(file_name(tensor.name))));
  // The order differs at all, where it should.
  const auto q = floats_of(checkpoint->matrix("layers.0.self_attn.q_b_proj").value());
  EXPECT_NE(q, floats_of(tensors_.at("model.layers.0.self_attn.q_b_proj.weight")));
  const auto norm = checkpoint->vector("layers.0.self_attn.indexer.k_norm").value();
  EXPECT_EQ(norm != floats_of(tensors_.at("model.layers.0.self_attn.indexer.k_norm.weight")), glm());
}

TEST_P(CheckpointLatentTest, HalfSplitFilesStayAsTheyAre) {
  change_config({{"rope_interleave", false}, {"indexer_rope_interleave", false}});
  auto checkpoint = opened();
  for (const auto& tensor : expected_tensors(checkpoint->config())) {
    if (tensor.shape.size() != 2) continue;
    EXPECT_EQ(floats_of(checkpoint->matrix(tensor.name).value()), floats_of(tensors_.at(file_name(tensor.name))));
  }
}

TEST_P(CheckpointLatentTest, ReleasedCopiesAreMadeAgain) {
  auto checkpoint = opened();
  const std::string name = "layers.1.self_attn.kv_a_proj_with_mqa";
  const auto before = floats_of(checkpoint->matrix(name).value());
  checkpoint->release(name);
  checkpoint->release(name);
  checkpoint->release("nothing");
  EXPECT_EQ(floats_of(checkpoint->matrix(name).value()), before);
}

// Every matrix but the router's and the embeddings as random E4M3 codes; sizes such as 160 leave partial blocks.
TEST_P(CheckpointLatentTest, Fp8WithBlockScales) {
  constexpr std::uint32_t kSeed = 99;
  std::mt19937 random(kSeed);
  std::map<std::string, std::vector<float>> wanted;
  Tensors scales;
  for (auto& [name, tensor] : tensors_) {
    if (tensor.shape.size() != 2 || name.find("_proj") == std::string::npos) continue;
    const auto columns = tensor.shape[1];
    const auto across = (columns + 127) / 128;
    const auto down = (tensor.shape[0] + 127) / 128;
    std::vector<float> factors(static_cast<std::size_t>(across * down));
    for (auto& factor : factors) factor = std::ldexp(1.0F + static_cast<float>(random() % 1000) / 1000.0F, -9);
    auto& values = wanted[name];
    tensor.dtype = "F8_E4M3";
    tensor.data.assign(static_cast<std::size_t>(tensor.shape[0] * columns), '\0');
    for (std::size_t i = 0; i < tensor.data.size(); ++i) {
      auto code = static_cast<std::uint8_t>(random());
      if ((code & 0x7fU) == 0x7fU) code = 0;
      tensor.data[i] = static_cast<char>(code);
      const auto block =
          static_cast<std::int64_t>(i) / columns / 128 * across + static_cast<std::int64_t>(i) % columns / 128;
      values.push_back(e4m3_to_f32(code) * factors[static_cast<std::size_t>(block)]);
    }
    std::string bytes(factors.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), factors.data(), bytes.size());
    scales[name + "_scale_inv"] = {"F32", {down, across}, bytes};
  }
  ASSERT_GT(wanted.size(), 80U);
  tensors_.merge(scales);
  write_model();
  change_config({{"quantization_config",
                  {{"quant_method", "fp8"},
                   {"fmt", "e4m3"},
                   {"activation_scheme", "dynamic"},
                   {"weight_block_size", {128, 128}}}}});
  auto checkpoint = opened();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->unused_tensors().empty());
  for (const auto& expected : expected_tensors(checkpoint->config())) {
    const auto it = wanted.find(file_name(expected.name));
    if (it == wanted.end()) continue;
    EXPECT_EQ(checkpoint->matrix(expected.name).value().type, kernels::WeightType::kF32);
    expect_rows(*checkpoint, expected, it->second);
    const auto widened = floats_of(checkpoint->matrix(expected.name).value());
    // The codes themselves stand for the same numbers.
    ASSERT_TRUE(checkpoint->has_fp8(expected.name));
    const auto view = checkpoint->fp8_matrix(expected.name).value();
    EXPECT_EQ(view.type, kernels::WeightType::kFp8Block);
    EXPECT_EQ(*to_float32(kernels::WeightType::kF32, fp8_to_float32(view.data, view.rows, view.cols, view.scales)),
              widened);
    checkpoint->release(expected.name);
  }
  EXPECT_TRUE(checkpoint->config().fp8_weights);
  EXPECT_FALSE(checkpoint->has_fp8("lm_head"));
  EXPECT_EQ(checkpoint->fp8_matrix("lm_head").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(checkpoint->fp8_matrix("nothing").error().code, ErrorCode::kNotFound);

  // What stays FP8: not what is taken apart or scaled; experts all or none.
  const auto all = fp8_matrices(*checkpoint, [](std::int64_t, std::int64_t) { return true; });
  for (const auto& expected : expected_tensors(checkpoint->config())) {
    const bool apart = expected.name.ends_with("kv_b_proj") || expected.name.ends_with("weights_proj");
    EXPECT_EQ(all.contains(expected.name), wanted.contains(file_name(expected.name)) && !apart) << expected.name;
  }
  EXPECT_TRUE(all.contains("layers.1.mlp.experts.0.gate_proj"));
  const auto& config = checkpoint->config();
  const auto without_down = fp8_matrices(*checkpoint, [&](std::int64_t rows, std::int64_t cols) {
    return rows != config.hidden || cols != config.experts->intermediate;
  });
  EXPECT_FALSE(without_down.contains("layers.1.mlp.experts.0.gate_proj"));
  EXPECT_TRUE(without_down.contains("layers.1.self_attn.o_proj"));
  EXPECT_TRUE(fp8_matrices(*checkpoint, [](std::int64_t, std::int64_t) { return false; }).empty());
}

TEST_P(CheckpointLatentTest, Fp8CodesThatAreNoNumbersAreRefusedWhereTheyWouldStay) {
  const std::string name = "layers.0.mlp.down_proj";
  auto& matrix = tensors_[file_name(name)];  // [96, 160]
  for (const std::size_t at : {0, 7, 8 * 33 + 5, 96 * 160 - 1}) {
    for (const char code : {'\x7f', '\xff'}) {
      matrix.dtype = "F8_E4M3";
      matrix.data.assign(96U * 160, '\x7e');
      tensors_[file_name(name) + "_scale_inv"] = {"F32", {1, 2}, std::string(8, '\0')};
      write_model();
      EXPECT_TRUE(opened()->fp8_matrix(name).ok());
      matrix.data[at] = code;
      write_model();
      auto checkpoint = opened();
      const auto refused = checkpoint->fp8_matrix(name);
      ASSERT_FALSE(refused.ok()) << at;
      EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
      EXPECT_NE(refused.error().message.find(file_name(name)), std::string::npos) << refused.error().message;
      EXPECT_TRUE(checkpoint->matrix(name).ok());
    }
  }
}

TEST_P(CheckpointLatentTest, Fp8WithoutUsableScalesIsRefusedByName) {
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  auto& matrix = tensors_[name];  // [96, 160]
  matrix.dtype = "F8_E4M3";
  matrix.data.resize(96U * 160);
  write_model();
  expect_refused("there is no tensor " + name + "_scale_inv");
  auto& scales = tensors_[name + "_scale_inv"];
  scales = {"F32", {1, 1}, std::string(4, '\0')};
  write_model();
  expect_refused("tensor " + name + "_scale_inv does not hold a float for each block");
  scales = {"F32", {2}, std::string(8, '\0')};
  write_model();
  expect_refused(name + "_scale_inv");
  scales = {"F8_E8M0", {1, 2}, std::string(2, '\0')};
  write_model();
  expect_refused(name + "_scale_inv");
  scales = {"F32", {1, 2}, std::string(8, '\0')};
  write_model();
  EXPECT_NE(opened(), nullptr);
  // A norm has no blocks.
  auto& norm = tensors_["model.norm.weight"];
  norm.dtype = "F8_E4M3";
  norm.data.resize(96);
  write_model();
  expect_refused("model.norm.weight has type F8_E4M3");
  norm.dtype = "F8_E5M2";
  write_model();
  expect_refused("model.norm.weight has type F8_E5M2");
}

TEST_P(CheckpointLatentTest, DraftLayersAreSkippedWithOneLine) {
  const std::string layer = "model.layers." + std::to_string(glm() ? 5 : 4) + ".";
  for (const auto* name : {"eh_proj.weight", "embed_tokens.weight", "self_attn.q_a_proj.weight"}) {
    tensors_[layer + name] = {"F32", {1}, std::string(4, '\0')};
  }
  tensors_["model.layers.17.eh_proj.weight"] = {"F32", {1}, std::string(4, '\0')};
  write_model();
  EXPECT_EQ(opened()->unused_tensors().size(), 4U);
  change_config({{"num_nextn_predict_layers", 1}});
  ::testing::internal::CaptureStderr();
  auto checkpoint = opened();
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(checkpoint->draft_tensors(), 3U);
  EXPECT_EQ(checkpoint->unused_tensors(), std::vector<std::string>{"model.layers.17.eh_proj.weight"});
  EXPECT_NE(log.find("skipped the checkpoint's 3 tensors"), std::string::npos) << log;
}

TEST_P(CheckpointLatentTest, StackedExpertsAreRefusedByName) {
  tensors_["model.layers.1.mlp.experts.gate_up_proj"] = {"F32", {1}, std::string(4, '\0')};
  write_model();
  expect_refused("tensor model.layers.1.mlp.experts.gate_up_proj stacks the experts");
}

TEST_P(CheckpointLatentTest, MissingAndMisshapedTensors) {
  const auto good = tensors_;
  for (const auto* name :
       {"model.layers.0.self_attn.indexer.k_norm.bias", "model.layers.1.mlp.experts.7.up_proj.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.shared_experts.down_proj.weight"}) {
    tensors_ = good;
    tensors_.erase(name);
    write_model();
    expect_refused("lacks tensors: layers.");
  }
  tensors_ = good;
  write_model();
  change_config({{"kv_lora_rank", 80}});
  expect_refused("kv_a_proj_with_mqa.weight has shape [80, 96] where the model's configuration asks for [96, 96]");
}

// Whatever the header says: loaded or refused with a message, and what was loaded can be read to its end.
TEST_P(CheckpointLatentTest, RandomChangesNeverCrash) {
  constexpr std::uint32_t kSeed = 772;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto good = read_bytes(folder_.path() / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, good.data(), sizeof header);
  for (int round = 0; round < 60; ++round) {
    auto bytes = good;
    for (std::uint32_t i = 0; i < 1 + random() % 3; ++i) {
      bytes[random() % (8 + header)] = static_cast<char>(random() % 2 == 0 ? '0' + random() % 10 : random() & 0xFF);
    }
    folder_.write("model.safetensors", bytes);
    auto checkpoint = open_checkpoint(folder_.path());
    if (!checkpoint.ok()) {
      EXPECT_FALSE(checkpoint.error().message.empty());
      continue;
    }
    for (const auto& expected : expected_tensors(checkpoint.value()->config())) {
      EXPECT_TRUE(expected.shape.size() == 2 ? checkpoint.value()->matrix(expected.name).ok()
                                             : checkpoint.value()->vector(expected.name).ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CheckpointLatentTest, ::testing::Values("tiny-deepseek-v32", "tiny-glm-dsa"));

// Rows that RoPE's order moves into another block of scales can't keep their codes.
TEST(Fp8MatrixTest, RowsStayWithinTheirBlocks) {
  const std::vector<std::byte> codes(256 * 128, std::byte{0x38});
  const std::vector<float> scales = {1, 2};
  const auto has = [&](const std::optional<AdjacentPairs>& pairs) {
    CheckpointContents contents;
    contents.tensors["m"] = {.file_name = "m",
                             .info = {"F8_E4M3", {256, 128}},
                             .type = kernels::WeightType::kF32,
                             .data = codes,
                             .pairs = pairs,
                             .scales = BlockScales{kernels::WeightType::kF32, std::as_bytes(std::span(scales))}};
    return Checkpoint(std::move(contents)).has_fp8("m");
  };
  EXPECT_TRUE(has(std::nullopt));
  EXPECT_TRUE(has(AdjacentPairs{.heads = 2, .head_rows = 128, .first = 64, .count = 64}));
  EXPECT_TRUE(has(AdjacentPairs{.heads = 4, .head_rows = 64, .first = 0, .count = 64}));
  EXPECT_FALSE(has(AdjacentPairs{.heads = 1, .head_rows = 256, .first = 64, .count = 66}));
  EXPECT_FALSE(has(AdjacentPairs{.heads = 2, .head_rows = 100, .first = 0, .count = 64})) << "of other rows";
}

TEST(Fp8ToFloat32Test, PartialBlocksAndNan) {
  // [130, 257]: 2 x 3 blocks, of which the last row has 2 and the last column 1.
  std::vector<std::byte> codes(130U * 257, std::byte{0x38});  // 1.0
  codes[5] = std::byte{0x7f};
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6};
  const auto values = *to_float32(kernels::WeightType::kF32, fp8_to_float32(codes, 130, 257, scales));
  ASSERT_EQ(values.size(), codes.size());
  const auto at = [&](std::size_t row, std::size_t column) { return values[row * 257 + column]; };
  EXPECT_EQ(at(0, 0), 1.0F);
  EXPECT_TRUE(std::isnan(at(0, 5)));
  EXPECT_EQ(at(0, 127), 1.0F);
  EXPECT_EQ(at(127, 128), 2.0F);
  EXPECT_EQ(at(127, 256), 3.0F);
  EXPECT_EQ(at(128, 127), 4.0F);
  EXPECT_EQ(at(129, 255), 5.0F);
  EXPECT_EQ(at(129, 256), 6.0F);
}

}  // namespace
}  // namespace hotset::model
