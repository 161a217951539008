#include "api/inspect_command.h"

#include <cstddef>
#include <string>

#include "api/command_output.h"
#include "core/concat.h"
#include "sparse/selection_trace.h"

namespace hotset::api {
namespace {

constexpr std::size_t kWriteBytes = 64 << 10;

void append_line(const sparse::SelectionRecord& record, std::string& out) {
  out += concat("{\"request\":", record.sequence.value(), ",\"step\":", record.step,
                ",\"layer\":", record.layer.value(), ",\"position\":", record.position, ",\"prefill\":", record.prefill,
                ",\"block_tokens\":", record.block_tokens, ",\"selected\":");
  if (record.everything) {
    out += "\"all\"}\n";
    return;
  }
  out += '[';
  for (std::size_t i = 0; i < record.blocks.size(); ++i) {
    if (i > 0) out += ',';
    append_part(out, record.blocks[i]);
  }
  out += "]}\n";
}

bool asked_for(const sparse::SelectionRecord& record, const InspectOptions& options) {
  return (!options.sequence || record.sequence.value() == *options.sequence) &&
         (!options.layer || record.layer.value() == *options.layer);
}

}  // namespace

int inspect_trace(const InspectOptions& options, std::ostream& out, std::ostream& err) {
  auto reader = sparse::TraceReader::open(options.file);
  if (!reader) {
    err << "hotset: " << reader.error().message << '\n';
    return 1;
  }
  CommandOutput output(out);
  std::string lines;
  std::string failure;
  for (std::int64_t printed = 0; options.limit == 0 || printed < options.limit;) {
    const auto record = reader.value()->next();
    if (!record) {
      failure = record.error().message;
      break;
    }
    if (!record.value()) break;
    if (!asked_for(*record.value(), options)) continue;
    append_line(*record.value(), lines);
    ++printed;
    if (lines.size() < kWriteBytes) continue;
    if (!output.write(lines)) break;
    lines.clear();
  }
  output.write(lines);
  const int written = output.finish(err);
  if (failure.empty()) return written;
  err << "hotset: " << failure << '\n';
  return 1;
}

}  // namespace hotset::api
