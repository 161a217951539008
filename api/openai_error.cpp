#include "api/openai_error.h"

#include <nlohmann/json.hpp>

namespace hotset::api {
namespace {

constexpr std::size_t kLongestMessage = 1024;  // keeps every error body below 4 KiB, whatever a template wrote into it

std::string_view code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kContextLengthExceeded: return "context_length_exceeded";
    case ErrorCode::kCapacityNever: return "capacity_exceeded";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kOverloaded: return "overloaded";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kCancelled: return "cancelled";
    default: return {};
  }
}

nlohmann::ordered_json text_or_null(std::string_view text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

std::string_view type_of_status(int status) { return status >= 500 ? "server_error" : "invalid_request_error"; }

}  // namespace

std::string error_body(std::string_view message, std::string_view type, std::string_view param, std::string_view code) {
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", message.substr(0, kLongestMessage)},
                                         {"type", type},
                                         {"param", text_or_null(param)},
                                         {"code", text_or_null(code)}}}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kContextLengthExceeded:
    case ErrorCode::kCapacityNever: return 400;
    case ErrorCode::kNotFound: return 404;
    case ErrorCode::kOverloaded:
    case ErrorCode::kUnavailable:
    case ErrorCode::kCancelled:
    case ErrorCode::kTimeout: return 503;
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal: return 500;
  }
  return 500;
}

std::string error_body(const Error& error) {
  return error_body(error.message, type_of_status(http_status(error.code)), error.param, code_name(error.code));
}

HttpReply error_reply(const Error& error) {
  HttpReply reply{.status = http_status(error.code), .body = error_body(error), .headers = {}};
  if (reply.status == 503) reply.headers.emplace_back("retry-after", error.code == ErrorCode::kOverloaded ? "1" : "5");
  return reply;
}

HttpReply protocol_error(int status, std::string_view message, std::string_view code) {
  HttpReply reply{.status = status, .body = error_body(message, type_of_status(status), {}, code), .headers = {}};
  if (status == 503) reply.headers.emplace_back("retry-after", "1");
  return reply;
}

}  // namespace hotset::api
