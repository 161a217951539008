#include "api/calibrate_command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "core/kv_geometry.h"
#include "model/calibration_text.h"
#include "model/index_basis_file.h"
#include "tests/model/byte_tokenizer.h"
#include "tests/model/temporary_folder.h"

namespace hotset::api {
namespace {

namespace fs = std::filesystem;

class CalibrateCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    model::copy_fixture("tiny-llama", model_);
    model_.write("tokenizer.json", model::byte_tokenizer_json());
    options_.model = model_.path();
    options_.cache_dir = files_.path() / "cache";
    options_.threads = 1;
  }
  // The file, after a good run.
  fs::path run() {
    out_.str("");
    progress_.str("");
    const auto done = calibrate(options_, out_, progress_, /*terminal=*/false);
    EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message);
    const std::string printed = out_.str();
    const std::string mark = "written to ";
    const auto at = printed.find(mark);
    EXPECT_NE(at, std::string::npos) << printed;
    if (at == std::string::npos) return {};
    return printed.substr(at + mark.size(), printed.find('\n', at) - at - mark.size());
  }
  Error failure() {
    const auto done = calibrate(options_, out_, progress_, false);
    EXPECT_FALSE(done.ok());
    return done.ok() ? Error{} : done.error();
  }
  static sparse::IndexBasis read(const fs::path& file) {
    const auto basis = model::read_index_basis(file, {.layers = 3, .kv_heads = 2, .key_dim = 16, .value_dim = 16});
    EXPECT_TRUE(basis.ok()) << (basis.ok() ? "" : basis.error().message);
    return basis.ok() ? basis.value() : sparse::IndexBasis{};
  }

  model::TemporaryFolder model_, files_;
  CalibrateOptions options_;
  std::ostringstream out_, progress_;
};

TEST_F(CalibrateCommand, WritesBesideTheModelAndTellsWhatIsCaptured) {
  const auto file = run();
  EXPECT_EQ(file, model_.path() / "index_basis.safetensors");
  EXPECT_EQ(read(file).rank, 4);
  for (const char* part : {"rank 4 of 16 channels, 3 layers, 2 KV heads; 8192 tokens in ", "worst KV head",
                           "all layers: mean ", ", worst "}) {
    EXPECT_NE(out_.str().find(part), std::string::npos) << part << " in\n" << out_.str();
  }
  EXPECT_NE(progress_.str().find("calibrating: 8192 of 8192 tokens\n"), std::string::npos);
  EXPECT_EQ(progress_.str().find('\r'), std::string::npos);
}

TEST_F(CalibrateCommand, ProgressOfATerminalStaysOnOneLine) {
  ASSERT_TRUE(calibrate(options_, out_, progress_, /*terminal=*/true).ok());
  EXPECT_NE(progress_.str().find("\rcalibrating: 256 of 8192 tokens\rcalibrating: 512"), std::string::npos);
  EXPECT_TRUE(progress_.str().ends_with("8192 of 8192 tokens\n"));
}

TEST_F(CalibrateCommand, TextRankAndFileOfTheUser) {
  options_.rank = 8;
  options_.out = files_.path() / "mine.safetensors";
  options_.text = files_.write("text", std::string(model::calibration_text().substr(0, 1000)));
  EXPECT_EQ(run(), options_.out);
  EXPECT_EQ(read(options_.out).rank, 8);
  EXPECT_NE(out_.str().find("; 1000 tokens in "), std::string::npos);
  EXPECT_FALSE(fs::exists(model_.path() / "index_basis.safetensors"));
  const auto hash = read(options_.out).hash;
  run();  // replaces the file by the same one
  EXPECT_EQ(read(options_.out).hash, hash);
}

TEST_F(CalibrateCommand, WithoutRoomBesideTheModelTheCacheTakesIt) {
  // A folder of that name can't be replaced by a file, whoever runs the test.
  fs::create_directories(model_.path() / "index_basis.safetensors" / "folder");
  const auto file = run();
  EXPECT_EQ(file.parent_path(), files_.path() / "cache");
  EXPECT_EQ(read(file).rank, 4);
  EXPECT_NE(out_.str().find("so the cache folder is used"), std::string::npos);
  options_.out = files_.path() / "absent" / "mine.safetensors";  // asked for: nowhere else
  EXPECT_EQ(failure().param, "--out");
}

TEST_F(CalibrateCommand, BadInputIsNamed) {
  for (const std::int64_t rank : {-4, 0, 5, 18}) {
    options_.rank = rank;
    EXPECT_EQ(failure().param, "--rank");
    EXPECT_NE(failure().message.find("--rank"), std::string::npos);
  }
  options_.rank.reset();
  options_.text = files_.write("short", std::string(255, 'a'));
  EXPECT_EQ(failure().param, "--text");
  EXPECT_NE(failure().message.find("255 tokens; at least 256"), std::string::npos);
  options_.text = files_.write("latin1", std::string(1000, '\xe4'));
  EXPECT_NE(failure().message.find("not valid UTF-8"), std::string::npos);
  options_.text = files_.path() / "absent";
  EXPECT_EQ(failure().param, "--text");
  options_.text.clear();
  options_.out = model_.path();
  EXPECT_EQ(failure().param, "--out");
  EXPECT_NE(failure().message.find("the model itself"), std::string::npos);
  options_.out.clear();
  fs::remove(model_.path() / "tokenizer.json");
  EXPECT_NE(failure().message.find("no tokenizer"), std::string::npos);
  options_.model = files_.path() / "no-model";
  EXPECT_EQ(failure().code, ErrorCode::kNotFound);
  EXPECT_FALSE(fs::exists(model_.path() / "index_basis.safetensors"));
}

}  // namespace
}  // namespace hotset::api
