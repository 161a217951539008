// Standard output of a command that prints more than a screen. A reader that goes away (`| head`) is no failure.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace hotset::api {

class CommandOutput {
 public:
  // `out` must outlive this object. From here on the process ignores SIGPIPE, which would end it without a word.
  explicit CommandOutput(std::ostream& out);

  // False: nobody reads any more, or the output can't be written; what follows would be lost too.
  bool write(std::string_view text);
  // Writes out what the stream holds. 0: done, or its reader has gone. 1: an error, told to `err`.
  [[nodiscard]] int finish(std::ostream& err);

 private:
  bool check();

  std::ostream& out_;
  int error_ = 0;  // errno of the first failure
};

}  // namespace hotset::api
