#include "api/openai_request.h"

#include <charconv>
#include <limits>
#include <random>

#include "api/openai_fields.h"
#include "api/openai_messages.h"
#include "core/concat.h"

namespace hotset::api {
namespace {

constexpr std::int64_t kMostChoicesPerPrompt = 128;
constexpr std::int64_t kMostLogprobs = 20;
constexpr std::size_t kMostStops = 16;
constexpr std::size_t kLongestStop = 256;  // bytes
constexpr std::size_t kMostStopTokens = 1'024;
constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kDefaultCompletionTokens = 16;
constexpr double kSmallestFraction = 1e-6;  // the open end of (0, 1]

std::uint64_t random_seed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

void read_logit_bias(FieldReader& fields, const RequestLimits& limits, model::SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.fail("logit_bias", "must be an object of token ids and numbers");
  for (const auto& [key, value] : bias->items()) {
    std::int32_t token = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token);
    if (read.ec != std::errc{} || read.ptr != key.data() + key.size() || token < 0 || token >= limits.vocabulary) {
      return fields.fail("logit_bias", concat("must have token ids from 0 to ", limits.vocabulary - 1, " as keys"));
    }
    if (!value.is_number() || !(value.get<double>() >= -100) || !(value.get<double>() <= 100)) {
      return fields.fail("logit_bias", "must have numbers from -100 to 100 as values");
    }
    sampling.logit_bias.emplace_back(token, value.get<float>());
  }
}

void read_sampling(FieldReader& fields, const RequestLimits& limits, model::SamplingParams& sampling) {
  sampling.temperature = static_cast<float>(fields.real("temperature", 0, 2).value_or(1));
  sampling.top_p = static_cast<float>(fields.real("top_p", kSmallestFraction, 1).value_or(1));
  sampling.min_p = static_cast<float>(fields.real("min_p", 0, 1).value_or(0));
  sampling.top_k = static_cast<std::int32_t>(
      std::max<std::int64_t>(0, fields.integer("top_k", -1, std::numeric_limits<std::int32_t>::max()).value_or(0)));
  sampling.repetition_penalty =
      static_cast<float>(fields.real("repetition_penalty", kSmallestFraction, 10).value_or(1));
  sampling.presence_penalty = static_cast<float>(fields.real("presence_penalty", -2, 2).value_or(0));
  sampling.frequency_penalty = static_cast<float>(fields.real("frequency_penalty", -2, 2).value_or(0));
  const auto seed =
      fields.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
  sampling.seed = seed ? static_cast<std::uint64_t>(*seed) : random_seed();
  read_logit_bias(fields, limits, sampling);
}

void read_stops(FieldReader& fields, const RequestLimits& limits, actors::GenerationRequest& generation) {
  if (const Json* stop = fields.find("stop"); stop != nullptr) {
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    if (list.size() > kMostStops) return fields.fail("stop", concat("may hold at most ", kMostStops, " strings"));
    for (const Json& item : list) {
      if (!item.is_string() || item.get_ref<const std::string&>().empty() ||
          item.get_ref<const std::string&>().size() > kLongestStop) {
        return fields.fail("stop", concat("must be a string, or a list of strings, of 1 to ", kLongestStop, " bytes"));
      }
      generation.stop.push_back(item.get<std::string>());
    }
  }
  if (const Json* ids = fields.find("stop_token_ids"); ids != nullptr) {
    if (!ids->is_array() || ids->size() > kMostStopTokens) {
      return fields.fail("stop_token_ids", concat("must be a list of at most ", kMostStopTokens, " token ids"));
    }
    if (auto tokens = fields.token_ids(*ids, "stop_token_ids", limits.vocabulary)) {
      generation.stop_token_ids = std::move(*tokens);
    }
  }
}

// "hotset": {"algorithm", "budget", "usage"}.
void read_extension(FieldReader& fields, OpenAiRequest& request) {
  const Json* extension = fields.find("hotset");
  if (extension == nullptr) return;
  if (!extension->is_object()) return fields.fail("hotset", "must be an object");
  FieldReader inner(*extension, "hotset.");
  request.generation.algorithm = inner.text("algorithm");
  if (request.generation.algorithm && request.generation.algorithm->empty()) {
    inner.fail("algorithm", "must name an algorithm");
  }
  request.generation.budget = inner.integer("budget", 1, kMostTokens);
  request.kv_usage = inner.boolean("usage").value_or(false);
  for (const auto& [key, value] : extension->items()) {
    if (key != "algorithm" && key != "budget" && key != "usage") {
      fields.fail("hotset", "may hold algorithm, budget and usage only");
    }
  }
  if (inner.failed()) fields.fail(inner.error());
}

// Fields that both endpoints share, apart from token limits and log-probabilities.
void read_common(FieldReader& fields, const RequestLimits& limits, OpenAiRequest& request) {
  auto& generation = request.generation;
  read_sampling(fields, limits, generation.sampling);
  read_stops(fields, limits, generation);
  generation.n = static_cast<std::int32_t>(fields.integer("n", 1, kMostChoicesPerPrompt).value_or(1));
  generation.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  generation.include_stop_str_in_output = fields.boolean("include_stop_str_in_output").value_or(false);
  generation.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  fields.text("user");
  read_extension(fields, request);
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.find("stream_options"); options != nullptr) {
    if (!options->is_object()) return fields.fail("stream_options", "must be an object");
    if (!request.stream) return fields.fail("stream_options", "is only allowed when 'stream' is true");
    FieldReader inner(*options);
    request.include_usage = inner.boolean("include_usage").value_or(false);
    if (inner.failed()) fields.fail("stream_options.include_usage", "must be true or false");
  }
}

void read_prompts(FieldReader& fields, const RequestLimits& limits, actors::GenerationRequest& generation) {
  constexpr std::string_view kForms =
      "must be a string, a list of strings, a list of token ids, or a list of such lists";
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.fail("prompt", "is required");
  if (prompt->is_string()) {
    generation.prompts.emplace_back(actors::TextPrompt{prompt->get<std::string>(), special});
    return;
  }
  if (!prompt->is_array() || prompt->empty()) return fields.fail("prompt", kForms);
  if (prompt->front().is_number()) {
    auto tokens = fields.token_ids(*prompt, "prompt", limits.vocabulary);
    if (tokens) generation.prompts.emplace_back(actors::TokenPrompt{std::move(*tokens)});
    return;
  }
  if (static_cast<std::int64_t>(prompt->size()) > limits.max_choices) {
    return fields.fail("prompt", concat("may hold at most ", limits.max_choices, " prompts"));
  }
  const bool texts = prompt->front().is_string();
  std::size_t index = 0;
  for (const Json& item : *prompt) {
    if (texts ? !item.is_string() : !item.is_array() || item.empty()) return fields.fail("prompt", kForms);
    if (texts) {
      generation.prompts.emplace_back(actors::TextPrompt{item.get<std::string>(), special});
    } else {
      auto tokens = fields.token_ids(item, concat("prompt[", index, "]"), limits.vocabulary);
      if (!tokens) return;
      generation.prompts.emplace_back(actors::TokenPrompt{std::move(*tokens)});
    }
    ++index;
  }
}

void check_choices(FieldReader& fields, const RequestLimits& limits, const actors::GenerationRequest& generation) {
  if (static_cast<std::int64_t>(generation.prompts.size()) * generation.n > limits.max_choices) {
    fields.fail("n", concat("times the number of prompts may be at most ", limits.max_choices));
  }
}

void refuse_unsupported_chat(FieldReader& fields) {
  if (const Json* format = fields.find("response_format"); format != nullptr) {
    if (!format->is_object()) return fields.fail("response_format", "must be an object");
    const auto type = format->find("type");
    if (type == format->end() || *type != "text") {
      return fields.fail("response_format", "must have type 'text': other formats are not supported");
    }
  }
  if (const Json* choice = fields.find("tool_choice"); choice != nullptr && *choice != "auto" && *choice != "none") {
    return fields.fail("tool_choice", "must be 'auto' or 'none': forcing a tool call is not supported");
  }
  if (fields.boolean("continue_final_message").value_or(false)) {
    fields.fail("continue_final_message", "is not supported");
  }
}

}  // namespace

Result<OpenAiRequest> parse_completion_request(const Json& body, const RequestLimits& limits) {
  FieldReader fields(body);
  OpenAiRequest request;
  auto& generation = request.generation;
  read_prompts(fields, limits, generation);
  read_common(fields, limits, request);
  check_choices(fields, limits, generation);

  generation.echo = fields.boolean("echo").value_or(false);
  const std::int64_t fewest = generation.echo ? 0 : 1;
  const auto cap = fields.integer("max_tokens", fewest, kMostTokens);
  const auto newer_cap = fields.integer("max_completion_tokens", fewest, kMostTokens);
  generation.max_tokens = newer_cap ? newer_cap : cap.value_or(kDefaultCompletionTokens);
  if (const auto logprobs = fields.integer("logprobs", 0, kMostLogprobs)) {
    request.logprobs = true;
    generation.sampling.logprobs = static_cast<std::int32_t>(*logprobs);
  }
  if (fields.integer("best_of", 1, kMostChoicesPerPrompt).value_or(generation.n) != generation.n) {
    fields.fail("best_of", "must equal 'n': choosing the best of more is not supported");
  }
  if (!fields.text("suffix").value_or("").empty()) fields.fail("suffix", "is not supported");
  if (fields.failed()) return fields.error();
  return request;
}

Result<OpenAiRequest> parse_chat_request(const Json& body, const RequestLimits& limits) {
  FieldReader fields(body);
  OpenAiRequest request;
  request.chat = true;
  auto& generation = request.generation;
  generation.prompts.emplace_back(read_chat_prompt(fields));
  read_common(fields, limits, request);
  check_choices(fields, limits, generation);
  refuse_unsupported_chat(fields);

  const auto cap = fields.integer("max_tokens", 1, kMostTokens);
  const auto newer_cap = fields.integer("max_completion_tokens", 1, kMostTokens);
  generation.max_tokens = newer_cap ? newer_cap : cap;
  request.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMostLogprobs).value_or(0);
  if (top > 0 && !request.logprobs) fields.fail("top_logprobs", "needs 'logprobs' to be true");
  if (request.logprobs) generation.sampling.logprobs = static_cast<std::int32_t>(top);
  if (fields.failed()) return fields.error();
  return request;
}

Result<actors::TokenizeRequest> parse_tokenize_request(const Json& body) {
  FieldReader fields(body);
  actors::TokenizeRequest request;
  if (fields.find("messages") != nullptr) {
    request.prompt = read_chat_prompt(fields);
  } else if (auto text = fields.text("prompt")) {
    request.prompt = actors::TextPrompt{std::move(*text), fields.boolean("add_special_tokens").value_or(true)};
  } else {
    fields.fail("prompt", "is required, unless 'messages' is given");
  }
  if (fields.failed()) return fields.error();
  return request;
}

Result<std::vector<std::int32_t>> parse_detokenize_request(const Json& body, const RequestLimits& limits) {
  FieldReader fields(body);
  const Json* list = fields.find("tokens");
  if (list == nullptr || !list->is_array()) {
    fields.fail("tokens", "must be a list of token ids");
    return fields.error();
  }
  auto tokens = fields.token_ids(*list, "tokens", limits.vocabulary);
  if (!tokens) return fields.error();
  return std::move(*tokens);
}

Result<std::string> parse_model(const Json& body) {
  FieldReader fields(body);
  auto name = fields.text("model").value_or("");
  if (fields.failed()) return fields.error();
  return name;
}

}  // namespace hotset::api
