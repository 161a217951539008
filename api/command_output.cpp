#include "api/command_output.h"

#include <cerrno>
#include <csignal>
#include <system_error>

namespace hotset::api {

CommandOutput::CommandOutput(std::ostream& out) : out_(out) { std::signal(SIGPIPE, SIG_IGN); }

bool CommandOutput::check() {
  if (out_) return true;
  if (error_ == 0) error_ = errno != 0 ? errno : EIO;
  return false;
}

bool CommandOutput::write(std::string_view text) {
  errno = 0;
  out_.write(text.data(), static_cast<std::streamsize>(text.size()));
  return check();
}

int CommandOutput::finish(std::ostream& err) {
  errno = 0;
  out_.flush();
  if (check() || error_ == EPIPE) return 0;
  err << "hotset: the output can't be written: " << std::generic_category().message(error_) << '\n';
  return 1;
}

}  // namespace hotset::api
