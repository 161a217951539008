// `hotset inspect trace` and `hotset replay`, from the command line to what they print.

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "api/inspect_command.h"
#include "api/options.h"
#include "api/replay_command.h"
#include "sparse/selection_trace.h"
#include "tests/model/temporary_folder.h"

namespace hotset::api {
namespace {

using Json = nlohmann::json;

struct Answer {
  int status = 0;
  std::string out;
  std::string err;
};

Answer run(const std::vector<std::string>& arguments) {
  const auto line = parse_command_line(arguments, [](const std::string&) { return std::nullopt; });
  if (!line) return {1, "", line.error().message};
  std::ostringstream out;
  std::ostringstream err;
  int status = 0;
  switch (line.value().command) {
    case Command::kInspectTrace: status = inspect_trace(line.value().inspect, out, err); break;
    case Command::kReplay: status = replay_trace(line.value().replay, out, err); break;
    case Command::kHelp: out << line.value().help; break;
    default: ADD_FAILURE() << "another command";
  }
  return {status, out.str(), err.str()};
}

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

class TraceCommands : public ::testing::Test {
 protected:
  // Two sequences in two layers: a row of the prompt, then ten of 4 blocks each, of which one is new each time.
  TraceCommands() : path_((folder_.path() / "run.trace").string()) {
    auto writer = sparse::TraceWriter::create(path_, {"tiny \x1b[31m", "lowrank", 2, 16});
    EXPECT_TRUE(writer.ok());
    for (std::int32_t step = 0; step < 11; ++step)
      for (const std::uint64_t sequence : {5, 9})
        for (std::int32_t layer = 0; layer < 2; ++layer) {
          sparse::SelectionRecord record;
          record.step = 100 + static_cast<std::uint64_t>(step);
          record.sequence = SequenceId{sequence};
          record.layer = LayerId{layer};
          record.position = 1'000 + step;
          record.prefill = record.everything = step == 0;
          const std::array<std::int32_t, 4> blocks{step, step + 1, step + 2, step + 3};
          if (step > 0) record.blocks = blocks;
          writer.value()->observe(record);
          if (step == 5) writer.value()->flush();
        }
  }

  model::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(TraceCommands, InspectPrintsEachRecordAsALine) {
  const Answer answer = run({"inspect", "trace", path_});
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.err, "");
  const std::vector<Json> lines = json_lines(answer.out);
  ASSERT_EQ(lines.size(), 44U);
  EXPECT_EQ(lines[0], Json::parse(R"({"request":5,"step":100,"layer":0,"position":1000,"prefill":true,
                                      "block_tokens":1,"selected":"all"})"));
  EXPECT_EQ(lines[43], Json::parse(R"({"request":9,"step":110,"layer":1,"position":1010,"prefill":false,
                                       "block_tokens":1,"selected":[10,11,12,13]})"));
}

TEST_F(TraceCommands, InspectPrintsWhatIsAskedFor) {
  const std::vector<Json> lines =
      json_lines(run({"inspect", "trace", path_, "--sequence", "9", "--layer", "1", "--limit", "3"}).out);
  ASSERT_EQ(lines.size(), 3U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["request"], 9);
    EXPECT_EQ(lines[i]["layer"], 1);
    EXPECT_EQ(lines[i]["step"], 100 + i);
  }
  EXPECT_EQ(run({"inspect", "trace", path_, "--sequence", "4"}).out, "");
}

TEST_F(TraceCommands, ReplayCountsWhatIsKnown) {
  const Answer answer = run({"replay", path_, "--json", "--hot-buffer", "1x,1.5x,8"});
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.err, "");
  const Json json = Json::parse(answer.out);
  EXPECT_EQ(json["algorithm"], "lowrank");
  EXPECT_EQ(json["sequences"], 2);
  EXPECT_EQ(json["rows"], 40);
  EXPECT_EQ(json["budget_tokens"], 4);
  EXPECT_EQ(json["hot_ring"], 16) << "the recorded server's";
  EXPECT_EQ(json["kept_from_the_step_before"]["mean"], 0.75);
  EXPECT_EQ(json["shared_with_the_layer_before"]["mean"], 1.0);
  ASSERT_EQ(json["runs"].size(), 6U);
  const std::array<int, 3> tokens{4, 6, 8};
  for (std::size_t i = 0; i < 6; ++i) {
    const Json& each = json["runs"][i];
    EXPECT_EQ(each["policy"], i < 3 ? "lru" : "belady");
    EXPECT_EQ(each["hot_buffer_tokens"], tokens[i % 3]);
    EXPECT_EQ(each["miss_share"]["mean"], 0.25);
    EXPECT_EQ(each["miss_share"]["worst"], 0.25);
    EXPECT_EQ(each["misses_of_a_row"]["p99"], 1);
    ASSERT_EQ(each["layers"].size(), 2U);
    EXPECT_EQ(each["layers"][1]["rows"], 18) << "but the first of each sequence";
    EXPECT_EQ(each["layers"][1]["misses"], 18);
  }
  const Json all = Json::parse(run({"replay", path_, "--json", "--skip", "0", "--policies", "belady"}).out);
  EXPECT_EQ(all["runs"][0]["layers"][0]["misses"], 2 * (4 + 9));
}

TEST_F(TraceCommands, ReplayPrintsATableForEachPolicy) {
  const std::string out = run({"replay", path_, "--hot-buffer", "1x,4096", "--hot-ring", "8"}).out;
  EXPECT_NE(out.find("2 sequences, 40 rows in 2 layers"), std::string::npos) << out;
  EXPECT_NE(out.find("ring of the newest 8 tokens"), std::string::npos) << out;
  EXPECT_NE(out.find("  buffer        1x      4096\n"
                     "  tokens         4      4096\n"
                     " layer 0    0.2500    0.2500\n"
                     " layer 1    0.2500    0.2500\n"
                     "    mean    0.2500    0.2500\n"
                     "   worst    0.2500    0.2500\n"
                     "  copied    0.0000    0.0000\n"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("policy lru"), std::string::npos);
  EXPECT_NE(out.find("policy belady (the best possible)"), std::string::npos);
  EXPECT_EQ(out.find('\x1b'), std::string::npos) << "a file must not steer the terminal";
}

TEST_F(TraceCommands, ErrorsNameTheOption) {
  const auto error = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"replay", path_});
    const Answer answer = run(more);
    EXPECT_EQ(answer.status, 1);
    EXPECT_EQ(answer.out, "");
    return answer.err;
  };
  for (const char* sizes : {"", "x", "0.5x", "nanx", "1x,", "2x;3x", "-4", "1e9x", "two", "99999999999999999999"})
    EXPECT_NE(error({"--hot-buffer", sizes}).find("--hot-buffer"), std::string::npos) << sizes;
  EXPECT_NE(error({"--hot-buffer", "3"}).find("largest selection of 4 tokens"), std::string::npos);
  EXPECT_NE(error({"--policies", "lru,fifo"}).find("--policies"), std::string::npos);
  EXPECT_NE(error({"--hot-ring", "0"}).find("--hot-ring"), std::string::npos);
  EXPECT_NE(error({"--skip", "10"}).find("--skip"), std::string::npos);
  EXPECT_NE(error({"--skip", "-1"}).find("--skip"), std::string::npos);
  EXPECT_NE(run({"inspect", "trace", path_, "--layer", "x"}).err.find("--layer"), std::string::npos);
  EXPECT_NE(run({"inspect", "trace", path_, "--limit", "-1"}).err.find("--limit"), std::string::npos);
  EXPECT_NE(run({"inspect", "trace"}).err.find("file"), std::string::npos);
  EXPECT_NE(run({"inspect"}).status, 0);
  EXPECT_NE(run({"replay"}).err.find("file"), std::string::npos);
}

TEST_F(TraceCommands, FilesThatAreNoTracesAreSaid) {
  const auto absent = (folder_.path() / "absent.trace").string();
  const auto text = folder_.write("text", "no trace at all").string();
  for (const std::vector<std::string>& command : {std::vector<std::string>{"inspect", "trace"}, {"replay"}}) {
    const auto error = [&](const std::string& file) {
      auto arguments = command;
      arguments.push_back(file);
      const Answer answer = run(arguments);
      EXPECT_EQ(answer.status, 1);
      EXPECT_EQ(answer.out, "");
      return answer.err;
    };
    EXPECT_NE(error(absent).find("absent.trace: there is no such file"), std::string::npos);
    EXPECT_NE(error(text).find("is not a trace"), std::string::npos);
    EXPECT_NE(error(folder_.path().string()).find("not a regular file"), std::string::npos);
  }
  const auto empty = (folder_.path() / "empty.trace").string();
  ASSERT_TRUE(sparse::TraceWriter::create(empty, {"m", "dense", 2, 0}).ok());
  EXPECT_NE(run({"replay", empty}).err.find("holds no selection of a generated token"), std::string::npos);
  EXPECT_EQ(run({"inspect", "trace", empty}).status, 0);
}

TEST_F(TraceCommands, ACutFileIsUsedUpToTheCut) {
  const std::string bytes = model::read_bytes(path_);
  const auto cut = folder_.write("cut.trace", bytes.substr(0, bytes.size() - 1)).string();
  const Answer inspected = run({"inspect", "trace", cut});
  EXPECT_EQ(inspected.status, 1);
  EXPECT_EQ(json_lines(inspected.out).size(), 24U);
  EXPECT_NE(inspected.err.find("cut off"), std::string::npos);
  const Answer replayed = run({"replay", cut, "--json"});
  EXPECT_EQ(replayed.status, 1);
  EXPECT_EQ(Json::parse(replayed.out)["rows"], 20);
  EXPECT_NE(replayed.err.find("cut off"), std::string::npos);
  // Enough lines were printed before the cut came into sight.
  EXPECT_EQ(run({"inspect", "trace", cut, "--limit", "3"}).status, 0);
}

TEST_F(TraceCommands, HelpIsOfTheInnermostCommand) {
  EXPECT_NE(run({"inspect", "trace", "--help"}).out.find("--sequence"), std::string::npos);
  EXPECT_NE(run({"inspect", "--help"}).out.find("trace"), std::string::npos);
  EXPECT_NE(run({"replay", "--help"}).out.find("--policies"), std::string::npos);
  EXPECT_NE(run({}).out.find("replay"), std::string::npos);
}

// The exit status of printing `trace` to `file`; `opened` runs between opening and printing.
template <class Opened>
int inspect_to(const std::string& file, const std::string& trace, Opened&& opened) {
  std::ofstream out(file, std::ios::binary);
  EXPECT_TRUE(out.is_open());
  opened();
  std::ostringstream err;
  InspectOptions options;
  options.file = trace;
  const int status = inspect_trace(options, out, err);
  EXPECT_EQ(status == 0, err.str().empty()) << err.str();
  return status;
}

TEST_F(TraceCommands, AReaderThatGoesAwayIsNoFailureButAFullDiskIs) {
  const auto big = (folder_.path() / "big.trace").string();
  {
    const auto writer = sparse::TraceWriter::create(big, {"m", "lowrank", 1, 0});
    std::vector<std::int32_t> blocks(1'000);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (std::int64_t i = 0; i < 500; ++i) {
      sparse::SelectionRecord record;
      record.position = 1'000 + i;
      record.blocks = blocks;
      writer.value()->observe(record);
    }
  }
  const auto nothing = [] {};
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const auto reader_goes = [&] {
    ::close(ends[0]);
    ::close(ends[1]);
  };
  EXPECT_EQ(inspect_to("/dev/fd/" + std::to_string(ends[1]), big, reader_goes), 0);
  EXPECT_EQ(inspect_to("/dev/full", big, nothing), 1);
  EXPECT_EQ(inspect_to("/dev/full", path_, nothing), 1) << "fails only when the stream is flushed";
  EXPECT_EQ(inspect_to("/dev/null", big, nothing), 0);
}

}  // namespace
}  // namespace hotset::api
