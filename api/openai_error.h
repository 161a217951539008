// Error objects in OpenAI form, and their HTTP status.
#pragma once

#include <string>
#include <string_view>

#include "api/http_exchange.h"
#include "core/result.h"

namespace hotset::api {

// {"error":{"message","type","param","code"}}; invalid UTF-8 in the message is replaced. Empty param and code become
// null.
[[nodiscard]] std::string error_body(std::string_view message, std::string_view type, std::string_view param = {},
                                     std::string_view code = {});

[[nodiscard]] int http_status(ErrorCode code);

// The same object, as body of an error reply or as data of an error event in a stream.
[[nodiscard]] std::string error_body(const Error& error);

// Status, body, and retry-after where trying again makes sense.
[[nodiscard]] HttpReply error_reply(const Error& error);

// An error of the protocol itself (401, 404, 405, 413, ...).
[[nodiscard]] HttpReply protocol_error(int status, std::string_view message, std::string_view code = {});

}  // namespace hotset::api
