#include "actors/gateway_core.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "fakes.h"

namespace hotset::actors {
namespace {

using fakes::bytes_of;
using fakes::RecordingSink;

class GatewayCoreTest : public testing::Test {
 protected:
  explicit GatewayCoreTest(bool with_tokenizer = true) {
    PromptEncoderParts parts;
    if (with_tokenizer) parts.tokenizer = fakes::byte_tokenizer();
    parts.vocabulary = fakes::kVocabulary;
    parts.no_chat_reason = "no template";
    const GatewayConfig config{.max_context = 100, .max_sequences = 8, .eos_tokens = {fakes::kEos}};
    core_ = std::make_unique<GatewayCore>(config, parts.tokenizer, open_, metrics_);
    reader_ = std::make_unique<PromptReader>(config, std::make_shared<const PromptEncoder>(std::move(parts)));
  }

  std::optional<SubmitSequences> open(GenerationRequest request) {
    sink_ = std::make_shared<RecordingSink>();
    open_.add(++handle_, sink_);
    const auto prompts = reader_->read(request);
    auto out = core_->open(handle_, std::make_shared<const GenerationRequest>(std::move(request)), prompts, 1);
    if (out) core_->accepted(handle_);
    return out;
  }
  ErrorCode refusal(GenerationRequest request, const char* param) {
    EXPECT_FALSE(open(std::move(request)).has_value());
    EXPECT_EQ(open_.size(), 0U);
    if (!sink_->error) return ErrorCode::kNotFound;
    EXPECT_EQ(sink_->error->param, param);
    return sink_->error->code;
  }
  GatewayCore::Sequences feed(std::uint64_t sequence, const std::vector<std::int32_t>& tokens,
                              OutputEnd end = OutputEnd::kNone) {
    SequenceOutput one;
    one.sequence = sequence;
    for (const std::int32_t token : tokens) one.tokens.push_back({.token = token, .logprob = -1, .top = {}});
    one.end = end;
    if (end == OutputEnd::kFailed) one.error = {ErrorCode::kInternal, "failed", {}};
    StepOutputs step;
    step.outputs.push_back(std::move(one));
    return core_->outputs(std::move(step), 2);
  }

  MetricsRegistry registry_;
  GatewayMetrics metrics_{registry_};
  OpenRequests open_;
  std::unique_ptr<GatewayCore> core_;
  std::unique_ptr<PromptReader> reader_;
  RequestHandle handle_ = 0;
  std::shared_ptr<RecordingSink> sink_;
};

GenerationRequest text_request(std::string text, std::optional<std::int64_t> max_tokens = 16) {
  GenerationRequest out;
  out.prompts.push_back(TextPrompt{.text = std::move(text)});
  out.max_tokens = max_tokens;
  return out;
}
GenerationRequest token_request(std::vector<std::int32_t> tokens) {
  GenerationRequest out;
  out.prompts.push_back(TokenPrompt{.tokens = std::move(tokens)});
  out.max_tokens = 4;
  return out;
}

TEST_F(GatewayCoreTest, PromptsTimesSamplesWithTheirIndicesAndUsage) {
  GenerationRequest request = text_request("ab");
  request.prompts.push_back(TextPrompt{.text = "xyz"});
  request.n = 2;
  request.sampling.seed = 9;
  const auto submission = open(std::move(request));
  ASSERT_TRUE(submission);
  ASSERT_EQ(submission->sequences.size(), 4U);
  EXPECT_EQ(submission->sequences[1].prompt, bytes_of("ab"));
  EXPECT_EQ(submission->sequences[2].prompt, bytes_of("xyz"));
  EXPECT_EQ(submission->sequences[0].sampling.seed, submission->sequences[2].sampling.seed);
  EXPECT_NE(submission->sequences[0].sampling.seed, submission->sequences[1].sampling.seed);
  EXPECT_EQ(submission->sequences[0].stop_token_ids, std::vector<std::int32_t>{fakes::kEos});
  ASSERT_TRUE(sink_->started);
  EXPECT_EQ(sink_->started->prompt_token_ids.at(1), bytes_of("xyz"));
  for (std::size_t i = 4; i-- > 0;) {
    const std::uint64_t id = submission->sequences[i].sequence;
    EXPECT_FALSE(sink_->usage);
    feed(id, bytes_of(std::string(i + 1, static_cast<char>('a' + i))), OutputEnd::kMaxTokens);
  }
  ASSERT_EQ(sink_->choices.size(), 4U);
  EXPECT_EQ(sink_->choices[3].text, "dddd");
  EXPECT_EQ(sink_->choices[1].finish, FinishReason::kLength);
  ASSERT_TRUE(sink_->usage);
  EXPECT_EQ(sink_->usage->prompt_tokens, 5);
  EXPECT_EQ(sink_->usage->completion_tokens, 10);
  EXPECT_EQ(core_->open_requests(), 0U);
}

TEST_F(GatewayCoreTest, SelectionIsPassedOnAndCacheUsageOfAllChoicesSummed) {
  GenerationRequest request = text_request("ab");
  request.n = 2;
  request.algorithm = "quest";
  request.budget = 512;
  const auto submission = open(std::move(request));
  ASSERT_EQ(submission->sequences.size(), 2U);
  const auto report = [&](std::size_t choice, std::int64_t host_bytes, std::int64_t misses, OutputEnd end) {
    const SequenceSubmission& one = submission->sequences[choice];
    EXPECT_EQ(one.algorithm, "quest");
    EXPECT_TRUE(one.own_budget);
    EXPECT_EQ(one.budget, 512);
    SequenceOutput output;
    output.sequence = one.sequence;
    output.tokens = {{.token = 'x', .logprob = -1, .top = {}}};
    output.end = end;
    output.usage = {.device_row_bytes = 10, .host_bytes = host_bytes, .misses = misses};
    core_->outputs(StepOutputs{.outputs = {output}}, 2);
  };
  report(0, 100, 1, OutputEnd::kNone);
  report(1, 7000, 50, OutputEnd::kMaxTokens);
  report(0, 200, 4, OutputEnd::kMaxTokens);  // since the sequence began: it replaces what was said before
  ASSERT_TRUE(sink_->usage);
  EXPECT_EQ(sink_->usage->kv, (sparse::KvUsage{.device_row_bytes = 20, .host_bytes = 7200, .misses = 54}));
  EXPECT_FALSE(open(text_request("ab"))->sequences[0].own_budget);
}

TEST_F(GatewayCoreTest, StopStringAcrossTokensCancelsTheSequence) {
  GenerationRequest request = text_request("p");
  request.stop = {"END"};
  const auto submission = open(std::move(request));
  const std::uint64_t id = submission->sequences[0].sequence;
  EXPECT_TRUE(feed(id, bytes_of("ab E")).empty());
  EXPECT_TRUE(feed(id, bytes_of("N")).empty());
  EXPECT_EQ(feed(id, bytes_of("Dzz")), GatewayCore::Sequences{id});
  EXPECT_EQ(sink_->choices[0].text, "ab ");
  EXPECT_EQ(sink_->choices[0].finish, FinishReason::kStop);
  EXPECT_EQ(sink_->choices[0].token_ids, bytes_of("ab END"));
  EXPECT_EQ(sink_->usage->completion_tokens, 6);
  EXPECT_TRUE(feed(id, bytes_of("late")).empty());
}

TEST_F(GatewayCoreTest, StopTokenIsCountedButItsTextIsNot) {
  GenerationRequest request = text_request("p");
  request.stop_token_ids = {'!'};
  const auto submission = open(request);
  feed(submission->sequences[0].sequence, bytes_of("hi!"), OutputEnd::kStopToken);
  EXPECT_EQ(sink_->choices[0].text, "hi");
  EXPECT_EQ(sink_->choices[0].token_ids.size(), 3U);
  EXPECT_EQ(sink_->choices[0].finish, FinishReason::kStop);
  request.include_stop_str_in_output = true;
  feed(open(request)->sequences[0].sequence, bytes_of("hi!"), OutputEnd::kStopToken);
  EXPECT_EQ(sink_->choices[0].text, "hi!");
}

TEST_F(GatewayCoreTest, HalfCharactersAreHeldBack) {
  const auto submission = open(text_request("p"));
  const std::uint64_t id = submission->sequences[0].sequence;
  for (const std::int32_t byte : bytes_of("a\xF0\x9F\x98\x80z")) feed(id, {byte});
  feed(id, bytes_of("\xC3"), OutputEnd::kMaxTokens);
  EXPECT_EQ(sink_->choices[0].text, "a\xF0\x9F\x98\x80z\xEF\xBF\xBD");
  EXPECT_EQ(sink_->pieces, (std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "z", "\xEF\xBF\xBD"}));
}

TEST_F(GatewayCoreTest, EchoWithLogprobsAlignsPromptAndOutput) {
  GenerationRequest request = text_request("abc");
  request.echo = true;
  request.sampling.logprobs = 1;
  const auto submission = open(std::move(request));
  const SequenceSubmission& one = submission->sequences[0];
  EXPECT_EQ(one.prompt_logprobs, 1);
  SequenceOutput output;
  output.sequence = one.sequence;
  output.prompt_logprobs = {{.token = 'b', .logprob = -2, .top = {{.token = 'x', .logprob = -1}}}};
  StepOutputs first{.outputs = {output}};
  core_->outputs(first, 2);
  EXPECT_TRUE(sink_->pieces.empty());  // not before the whole prompt is scored
  output.prompt_logprobs = {{.token = 'c', .logprob = -3, .top = {}}};
  output.tokens = {{.token = 'd', .logprob = -4, .top = {}}};
  output.end = OutputEnd::kMaxTokens;
  core_->outputs(StepOutputs{.outputs = {output}}, 3);
  const ChoiceDelta& choice = sink_->choices[0];
  EXPECT_EQ(choice.text, "abcd");
  ASSERT_EQ(choice.logprobs.size(), 4U);
  EXPECT_FALSE(choice.logprobs[0].logprob.has_value());
  EXPECT_EQ(choice.logprobs[1].logprob, -2.0F);
  EXPECT_EQ(choice.logprobs[1].top.at(0).text, "x");
  EXPECT_EQ(choice.logprobs[3].text, "d");
  EXPECT_EQ(choice.token_ids, bytes_of("d"));
}

TEST_F(GatewayCoreTest, EchoAloneComesAtTheStartAndMayScoreOnly) {
  GenerationRequest request = text_request("abc", 0);
  request.echo = true;
  const auto submission = open(std::move(request));
  EXPECT_EQ(sink_->choices.at(0).text, "abc");
  EXPECT_EQ(submission->sequences[0].max_new_tokens, 0);
  feed(submission->sequences[0].sequence, {}, OutputEnd::kMaxTokens);
  EXPECT_EQ(sink_->choices[0].finish, FinishReason::kLength);
  EXPECT_EQ(sink_->usage->completion_tokens, 0);
}

TEST_F(GatewayCoreTest, ContextLimits) {
  const std::string full(100, 'x');
  EXPECT_EQ(refusal(text_request(full), "prompt"), ErrorCode::kContextLengthExceeded);
  EXPECT_NE(sink_->error->message.find("100"), std::string::npos);
  EXPECT_TRUE(open(text_request(full, 0)));  // scored only
  core_->cancel(handle_);
  EXPECT_EQ(refusal(text_request(full + "x", 0), "prompt"), ErrorCode::kContextLengthExceeded);
}

TEST_F(GatewayCoreTest, OutputIsClippedToTheRoomThatIsLeft) {
  const auto clipped = open(text_request(std::string(95, 'x'), 50));
  EXPECT_EQ(clipped->sequences[0].max_new_tokens, 5);
  EXPECT_TRUE(clipped->sequences[0].limited);
  const auto open_end = open(text_request(std::string(95, 'x'), std::nullopt));
  EXPECT_EQ(open_end->sequences[0].max_new_tokens, 5);
  EXPECT_FALSE(open_end->sequences[0].limited);
}

TEST_F(GatewayCoreTest, RefusesWhatCanNotBeAnswered) {
  const auto bad = ErrorCode::kInvalidArgument;
  EXPECT_EQ(refusal(text_request(""), "prompt"), bad);
  EXPECT_EQ(refusal(token_request({}), "prompt"), bad);
  EXPECT_EQ(refusal(token_request({1, -1}), "prompt"), bad);
  EXPECT_EQ(refusal(token_request({fakes::kVocabulary}), "prompt"), bad);
  EXPECT_TRUE(open(token_request({fakes::kVocabulary - 1})));
  core_->cancel(handle_);
  GenerationRequest request = text_request("a");
  request.stop_token_ids = {fakes::kVocabulary};
  EXPECT_EQ(refusal(request, "stop_token_ids"), bad);
  request = text_request("a");
  request.sampling.logit_bias = {{-1, 2.0F}};
  EXPECT_EQ(refusal(request, "logit_bias"), bad);
  request = text_request("a");
  request.n = 9;
  EXPECT_EQ(refusal(request, "n"), bad);
  request = GenerationRequest{};
  request.prompts.push_back(ChatPrompt{.messages_json = "[]", .tools_json = {}, .template_kwargs_json = {}});
  EXPECT_EQ(refusal(request, "messages"), bad);
  EXPECT_EQ(sink_->error->message, "no template");
}

TEST_F(GatewayCoreTest, AFailedChoiceEndsItsRequestAndCancelsItsSiblings) {
  GenerationRequest request = text_request("a");
  request.n = 3;
  const auto submission = open(std::move(request));
  feed(submission->sequences[2].sequence, bytes_of("x"), OutputEnd::kMaxTokens);
  const auto cancels = feed(submission->sequences[1].sequence, {}, OutputEnd::kFailed);
  EXPECT_EQ(cancels, GatewayCore::Sequences{submission->sequences[0].sequence});
  ASSERT_TRUE(sink_->error);
  EXPECT_EQ(sink_->error->code, ErrorCode::kInternal);
  EXPECT_TRUE(feed(submission->sequences[0].sequence, bytes_of("late")).empty());
  EXPECT_EQ(open_.size(), 0U);
}

TEST_F(GatewayCoreTest, CancelAndFailAllEndEverything) {
  const auto first = open(text_request("a"));
  const auto first_sink = sink_;
  EXPECT_EQ(core_->cancel(handle_), GatewayCore::Sequences{first->sequences[0].sequence});
  EXPECT_FALSE(first_sink->ended());
  EXPECT_EQ(first_sink.use_count(), 2);  // this test's two
  const auto second = open(text_request("b"));
  EXPECT_EQ(core_->fail_all({ErrorCode::kUnavailable, "over", {}}),
            GatewayCore::Sequences{second->sequences[0].sequence});
  EXPECT_EQ(sink_->error->message, "over");
}

class GatewayWithoutTokenizer : public GatewayCoreTest {
 protected:
  GatewayWithoutTokenizer() : GatewayCoreTest(false) {}
};

TEST_F(GatewayWithoutTokenizer, ServesTokenIdsOnly) {
  EXPECT_EQ(refusal(text_request("a"), "prompt"), ErrorCode::kInvalidArgument);
  GenerationRequest request = token_request({5, 6});
  request.stop = {"x"};
  EXPECT_EQ(refusal(request, "stop"), ErrorCode::kInvalidArgument);
  request = token_request({5, 6});
  request.sampling.logprobs = 0;
  request.echo = true;
  const auto submission = open(request);
  SequenceOutput output;
  output.sequence = submission->sequences[0].sequence;
  output.prompt_logprobs = {{.token = 6, .logprob = -2, .top = {}}};
  output.tokens = {{.token = 7, .logprob = -1, .top = {}}};
  output.end = OutputEnd::kMaxTokens;
  core_->outputs(StepOutputs{.outputs = {output}}, 3);
  EXPECT_EQ(sink_->choices[0].text, "");
  EXPECT_EQ(sink_->choices[0].token_ids, std::vector<std::int32_t>{7});
  ASSERT_EQ(sink_->choices[0].logprobs.size(), 3U);
  EXPECT_EQ(sink_->choices[0].logprobs[2].text, "token_id:7");
  EXPECT_FALSE(reader_->detokenize({1}).ok());
}

TEST_F(GatewayCoreTest, TextThatCannotFitIsNotEncoded) {
  // 100 tokens of at most 7 bytes ("<|end|>"), four times that for what normalisation may take away.
  const auto message = [&](std::size_t bytes) {
    EXPECT_EQ(refusal(text_request(std::string(bytes, 'x')), "prompt"), ErrorCode::kContextLengthExceeded);
    return sink_->error->message;
  };
  EXPECT_NE(message(2800).find("the prompt has 2800 and leaves no room"), std::string::npos);
  EXPECT_NE(message(2801).find("the prompt has 2801 bytes"), std::string::npos);
}

// "size" of the only message says how many bytes the template makes of it.
TEST(PromptReaderOfChats, AChatThatCannotFitIsNotEncoded) {
  PromptEncoderParts parts;
  parts.tokenizer = fakes::byte_tokenizer();
  parts.vocabulary = fakes::kVocabulary;
  parts.render = [](const ChatPrompt& prompt) -> Result<std::string> {
    return std::string(nlohmann::json::parse(prompt.messages_json).at(0).at("size").get<std::size_t>(), 'x');
  };
  const PromptReader reader({.max_context = 100, .max_sequences = 8, .eos_tokens = {}},
                            std::make_shared<const PromptEncoder>(std::move(parts)));
  const auto read = [&](std::size_t rendered, std::size_t content) {
    GenerationRequest request;
    const nlohmann::json message{{"size", rendered}, {"content", std::string(content, 'c')}};
    request.prompts.push_back(ChatPrompt{
        .messages_json = nlohmann::json::array({message}).dump(), .tools_json = {}, .template_kwargs_json = {}});
    return reader.read(request);
  };
  const auto count = [&](std::size_t rendered) {
    const nlohmann::json messages{{{"size", rendered}}};
    return reader.tokenize(
        {.prompt = ChatPrompt{.messages_json = messages.dump(), .tools_json = {}, .template_kwargs_json = {}}});
  };
  EXPECT_EQ(count(5000).value().tokens.size(), 5000U);
  EXPECT_EQ(count((16U << 20) + 1).error().code, ErrorCode::kContextLengthExceeded);
  EXPECT_EQ(read(99, 100'000).value().at(0)->size(), 99U);  // a template may drop most of what it gets
  // 100 tokens of at most 7 bytes, times four: as for text.
  for (const auto& [bytes, message] :
       {std::pair(2800U, "the prompt has 2800 and leaves no room"), std::pair(2801U, "the prompt has 2801 bytes")}) {
    const auto refused = read(bytes, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kContextLengthExceeded);
    EXPECT_EQ(refused.error().param, "messages");
    EXPECT_NE(refused.error().message.find(message), std::string::npos) << refused.error().message;
  }
}

TEST(PromptReaderAtTheEnd, WhatStillWaitsIsRefused) {
  PromptEncoderParts parts;
  parts.tokenizer = fakes::byte_tokenizer();
  parts.vocabulary = fakes::kVocabulary;
  const auto too_late = std::make_shared<std::atomic<bool>>(false);
  const PromptReader reader({.max_context = 100, .max_sequences = 8, .eos_tokens = {}, .too_late = too_late},
                            std::make_shared<const PromptEncoder>(std::move(parts)));
  const TokenizeRequest text{.prompt = TextPrompt{.text = "a"}};
  EXPECT_TRUE(reader.read(text_request("a")).ok());
  EXPECT_TRUE(reader.tokenize(text).ok());
  EXPECT_TRUE(reader.detokenize({'a'}).ok());
  *too_late = true;
  EXPECT_EQ(reader.read(text_request("a")).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(reader.tokenize(text).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(reader.detokenize({'a'}).error().code, ErrorCode::kUnavailable);
}

TEST_F(GatewayCoreTest, TokenizeCountsTextBeyondTheContextButNotAnyText) {
  constexpr std::size_t kMost = std::size_t{16} << 20;
  // No UTF-8: the tokenizer refuses it at once, so that the test need not wait for megabytes.
  const auto code = [&](std::size_t bytes) {
    return reader_->tokenize({.prompt = TextPrompt{.text = std::string(bytes, '\xFF')}}).error().code;
  };
  EXPECT_EQ(reader_->tokenize({.prompt = TextPrompt{.text = std::string(5000, 'x')}}).value().tokens.size(), 5000U);
  EXPECT_EQ(code(kMost), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kMost + 1), ErrorCode::kContextLengthExceeded);
}

TEST_F(GatewayCoreTest, TokenizeAndDetokenize) {
  const auto tokens = reader_->tokenize({.prompt = TextPrompt{.text = "hi</s>"}});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens.value().tokens, (std::vector<std::int32_t>{'h', 'i', fakes::kEos}));
  EXPECT_EQ(tokens.value().max_model_len, 100);
  EXPECT_EQ(reader_->tokenize({.prompt = TextPrompt{.text = ""}}).value().tokens.size(), 0U);
  EXPECT_EQ(reader_->detokenize(tokens.value().tokens).value(), "hi</s>");
  EXPECT_EQ(reader_->detokenize({0xC3}).value(), "\xEF\xBF\xBD");
  EXPECT_FALSE(reader_->detokenize({fakes::kVocabulary}).ok());
}

}  // namespace
}  // namespace hotset::actors
