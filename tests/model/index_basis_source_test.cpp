#include "model/index_basis_source.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/cpu/cpu_backend.h"
#include "model/fingerprint.h"
#include "model/index_basis_file.h"
#include "tests/model/byte_tokenizer.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

namespace fs = std::filesystem;

// A copy of tiny-llama with a tokenizer, and a cache folder that does not exist yet.
class IndexBasisSource : public ::testing::Test {
 protected:
  void SetUp() override {
    copy_fixture("tiny-llama", model_);
    tokenizer_ = load_tokenizer_json(byte_tokenizer_json(), {}).value();
    request_ = {.model = model_.path(), .cache_dir = (cache_.path() / "deep" / "cache").string()};
    request_.tokenizer = tokenizer_.get();
    request_.progress = [this](std::int64_t, std::int64_t) { ++calibrated_chunks_; };
  }
  void put_beside() {
    fs::copy_file(fixture("tiny-llama") / "index_basis.safetensors", model_.path() / "index_basis.safetensors");
  }
  Result<std::optional<FoundIndexBasis>> find() {
    calibrated_chunks_ = 0;
    const auto checkpoint = open_checkpoint(request_.model).value();
    fingerprint_ = fingerprint(*checkpoint);
    const auto backend = kernels::make_cpu_backend(1);
    const auto weights = load_weights(*checkpoint, *backend).value();
    const auto calibrate_model = [&](std::span<const std::int32_t> tokens, std::int64_t rank,
                                     const CalibrationProgress& progress) {
      return calibrate(*weights, *backend, tokens, rank, progress);
    };
    return find_or_calibrate(*checkpoint, calibrate_model, request_);
  }
  FoundIndexBasis found() {
    auto result = find();
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    EXPECT_TRUE(result.ok() && result.value());
    if (!result.ok() || !result.value()) return {};
    EXPECT_EQ(calibrated_chunks_ > 0, result.value()->origin == IndexBasisOrigin::kCalibrated);
    return *result.value();
  }

  TemporaryFolder model_, cache_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  IndexBasisRequest request_;
  Hash128 fingerprint_{};
  int calibrated_chunks_ = 0;
};

TEST_F(IndexBasisSource, BesideTheModelComesFirst) {
  const auto calibrated = found();
  put_beside();
  const auto beside = found();
  EXPECT_EQ(beside.origin, IndexBasisOrigin::kBesideModel);
  EXPECT_EQ(beside.file, model_.path() / "index_basis.safetensors");
  EXPECT_NE(beside.basis->hash, calibrated.basis->hash);
  request_.tokenizer = nullptr;  // not needed for it
  EXPECT_EQ(found().basis->hash, beside.basis->hash);
  request_.model = model_.path() / "model.safetensors";
  EXPECT_EQ(found().basis->hash, beside.basis->hash);
  request_.rank = beside.basis->rank;
  EXPECT_EQ(found().basis->hash, beside.basis->hash);
}

TEST_F(IndexBasisSource, CalibratesOnceAndKeepsTheResult) {
  const auto first = found();
  EXPECT_EQ(first.origin, IndexBasisOrigin::kCalibrated);
  EXPECT_EQ(first.basis->rank, 4);  // of 16 channels
  const auto file = cache_.path() / "deep" / "cache" / cached_index_basis_name(fingerprint_, 4);
  EXPECT_EQ(first.file, file);
  ASSERT_TRUE(fs::exists(file));

  const auto second = found();
  EXPECT_EQ(second.origin, IndexBasisOrigin::kCache);
  EXPECT_EQ(second.file, file);
  EXPECT_EQ(second.basis->hash, first.basis->hash);
  EXPECT_EQ(second.basis->u, first.basis->u);

  request_.tokenizer = nullptr;
  EXPECT_EQ(found().origin, IndexBasisOrigin::kCache);
}

TEST_F(IndexBasisSource, AnotherRankIsAnotherFile) {
  put_beside();
  request_.rank = 8;  // the file beside the model has 4
  const auto calibrated = found();
  EXPECT_EQ(calibrated.origin, IndexBasisOrigin::kCalibrated);
  EXPECT_EQ(calibrated.basis->rank, 8);
  EXPECT_EQ(found().origin, IndexBasisOrigin::kCache);
  request_.rank = 6;
  EXPECT_EQ(found().origin, IndexBasisOrigin::kCalibrated);
  request_.rank.reset();
  EXPECT_EQ(found().basis->rank, 4);
  for (const std::int64_t rank : {3, 18}) {
    request_.rank = rank;
    const auto refused = find();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().param, "--index-rank");
  }
}

TEST_F(IndexBasisSource, OtherWeightsAreAnotherModel) {
  const auto first = found();
  std::string weights = read_bytes(model_.path() / "model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  model_.write("model.safetensors", weights);
  const auto second = found();
  EXPECT_EQ(second.origin, IndexBasisOrigin::kCalibrated);
  EXPECT_NE(second.file, first.file);
}

TEST_F(IndexBasisSource, NeitherFileNorTokenizer) {
  request_.tokenizer = nullptr;
  const auto result = find();
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result.value());
}

TEST_F(IndexBasisSource, ADamagedCacheIsMadeAnew) {
  const auto first = found();
  const std::string good = read_bytes(first.file);
  std::string foreign = good;
  const auto at = foreign.find("layers.2.");
  ASSERT_NE(at, std::string::npos);
  foreign[at + 7] = '7';
  for (const std::string& bytes : {std::string(), good.substr(0, good.size() / 2), foreign}) {
    {
      fs::remove(first.file);
      std::ofstream(first.file, std::ios::binary) << bytes;
    }
    const auto again = found();
    EXPECT_EQ(again.origin, IndexBasisOrigin::kCalibrated);
    EXPECT_EQ(again.basis->hash, first.basis->hash);
    EXPECT_EQ(read_bytes(first.file), good);
  }
  // A good file under another rank's name.
  request_.rank = 8;
  const auto wide = found();
  fs::remove(first.file);
  fs::copy_file(wide.file, first.file);
  request_.rank.reset();
  EXPECT_EQ(found().basis->rank, 4);
}

TEST_F(IndexBasisSource, ADamagedFileBesideTheModelIsAnError) {
  model_.write("index_basis.safetensors", "not a file of tensors");
  const auto result = find();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("index_basis.safetensors"), std::string::npos);
}

TEST_F(IndexBasisSource, ACacheThatCantBeWrittenIsDoneWithout) {
  cache_.write("file", "in the way");
  request_.cache_dir = (cache_.path() / "file" / "cache").string();
  for (int round = 0; round < 2; ++round) {
    const auto basis = found();
    EXPECT_EQ(basis.origin, IndexBasisOrigin::kCalibrated);
    EXPECT_TRUE(basis.file.empty());
  }
}

TEST(IndexBasisPath, BesideTheModel) {
  EXPECT_EQ(index_basis_path_beside("models/llama"), "models/llama/index_basis.safetensors");
  EXPECT_EQ(index_basis_path_beside("models/llama/"), "models/llama/index_basis.safetensors");
  EXPECT_EQ(index_basis_path_beside("models/llama/model.safetensors"), "models/llama/index_basis.safetensors");
  EXPECT_EQ(index_basis_path_beside("models/small.gguf"), "models/small.gguf.index_basis.safetensors");
}

TEST(CacheFolder, OptionThenXdgThenHome) {
  const auto set = [](const char* name, const char* value) {
    return value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  };
  set("XDG_CACHE_HOME", "/xdg");
  set("HOME", "/home/user");
  EXPECT_EQ(cache_folder("relative/folder"), "relative/folder");
  EXPECT_EQ(cache_folder(""), "/xdg/hotset");
  set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(cache_folder(""), "/home/user/.cache/hotset");
  set("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(cache_folder(""), "/home/user/.cache/hotset");
  set("HOME", nullptr);
  EXPECT_EQ(cache_folder(""), std::nullopt);
}

}  // namespace
}  // namespace hotset::model
