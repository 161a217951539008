#include "actors/wire_messages.h"

#include <gtest/gtest.h>

#include <caf/actor_system.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/message.hpp>
#include <vector>

#include "actors/actor_config.h"

namespace hotset::actors {
namespace {

// As a remote peer would receive it.
template <class T>
T over_the_wire(caf::actor_system& system, const T& value) {
  std::vector<char> bytes;
  caf::binary_serializer sink{system, bytes};
  caf::message sent = caf::make_message(value);
  EXPECT_FALSE(sink(sent));
  caf::binary_deserializer source{system, bytes};
  caf::message received;
  EXPECT_FALSE(source(received));
  EXPECT_TRUE(received.match_elements<T>());
  return received.get_as<T>(0);
}

TEST(WireMessages, ArriveWhole) {
  ActorConfig config;
  caf::actor_system system{config};
  SequenceSubmission one;
  one.sequence = ~std::uint64_t{0};
  one.prompt = {1, -2, 3};
  one.limited = true;
  one.max_new_tokens = std::int64_t{1} << 40;
  one.sampling.temperature = 0.25F;
  one.sampling.logit_bias = {{4, -1.5F}};
  one.sampling.seed = 77;
  one.sampling.logprobs = 3;
  one.stop_token_ids = {9};
  one.prompt_logprobs = 2;
  one.algorithm = "quest";
  one.own_budget = true;
  one.budget = std::int64_t{1} << 33;
  const SubmitSequences submitted = over_the_wire(system, SubmitSequences{.sequences = {one}});
  ASSERT_EQ(submitted.sequences.size(), 1U);
  const SequenceSubmission& got = submitted.sequences[0];
  EXPECT_EQ(got.sequence, one.sequence);
  EXPECT_EQ(got.prompt, one.prompt);
  EXPECT_TRUE(got.limited);
  EXPECT_EQ(got.max_new_tokens, one.max_new_tokens);
  EXPECT_EQ(got.sampling.temperature, 0.25F);
  EXPECT_EQ(got.sampling.logit_bias, one.sampling.logit_bias);
  EXPECT_EQ(got.sampling.seed, 77U);
  EXPECT_EQ(got.sampling.logprobs, 3);
  EXPECT_EQ(got.stop_token_ids, one.stop_token_ids);
  EXPECT_EQ(got.prompt_logprobs, 2);
  EXPECT_EQ(got.algorithm, "quest");
  EXPECT_TRUE(got.own_budget);
  EXPECT_EQ(got.budget, one.budget);

  const SubmitAnswer answer =
      over_the_wire(system, SubmitAnswer{.accepted = false, .error = {ErrorCode::kOverloaded, "full", "n"}});
  EXPECT_FALSE(answer.accepted);
  EXPECT_EQ(answer.error.code, ErrorCode::kOverloaded);
  EXPECT_EQ(answer.error.message, "full");
  EXPECT_EQ(answer.error.param, "n");

  SequenceOutput output;
  output.sequence = 5;
  output.tokens = {{.token = 3, .logprob = -0.5F, .top = {{.token = 8, .logprob = -2}}}};
  output.end = OutputEnd::kStopToken;
  output.usage = {.device_row_bytes = 1,
                  .device_metadata_bytes = 2,
                  .device_table_bytes = 3,
                  .host_bytes = std::int64_t{1} << 40,
                  .hits = 5,
                  .ring_hits = 6,
                  .misses = 7,
                  .bytes_loaded = 8,
                  .bytes_offloaded = 9};
  const StepOutputs outputs = over_the_wire(system, StepOutputs{.outputs = {output}});
  ASSERT_EQ(outputs.outputs.size(), 1U);
  EXPECT_EQ(outputs.outputs[0].end, OutputEnd::kStopToken);
  EXPECT_EQ(outputs.outputs[0].tokens.at(0).top.at(0).token, 8);
  EXPECT_EQ(outputs.outputs[0].usage, output.usage);
  EXPECT_EQ(over_the_wire(system, CancelSequences{.sequences = {1, 2}}).sequences.size(), 2U);
}

}  // namespace
}  // namespace hotset::actors
