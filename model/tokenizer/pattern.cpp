#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/pattern.h"

#include <pcre2.h>

#include "core/concat.h"
#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

// Match data, context and JIT stack of one thread; PCRE2 needs them apart from the compiled pattern. A megabyte of
// stack was never used up by any pattern of a known model, even on runs of a million equal characters.
class MatchState {
 public:
  MatchState()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 * 1024, 1024 * 1024, nullptr)) {
    if (context_ != nullptr && stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~MatchState() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  [[nodiscard]] bool ok() const { return data_ != nullptr && context_ != nullptr; }
  [[nodiscard]] pcre2_match_data* data() { return data_; }
  [[nodiscard]] pcre2_match_context* context() { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

PCRE2_SPTR units(std::string_view text) {
  // PCRE2 refuses a null subject.
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

}  // namespace

Result<std::shared_ptr<const Pattern>> Pattern::compile(std::string_view source, unsigned options) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(units(source), source.size(), options | PCRE2_UTF, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return invalid_argument(concat("the tokenizer has a pattern that can't be compiled, PCRE2 error ", error));
  }
  // Without a JIT on this machine pcre2_match interprets: slower, same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  std::shared_ptr<Pattern> pattern(new Pattern);
  pattern->code_ = code;
  return std::shared_ptr<const Pattern>(std::move(pattern));
}

Result<std::shared_ptr<const Pattern>> Pattern::regex(std::string_view oniguruma) {
  auto source = translate_regex(oniguruma);
  if (!source) return source.error();
  return compile(source.value(), PCRE2_UCP | PCRE2_DOLLAR_ENDONLY);
}

Result<std::shared_ptr<const Pattern>> Pattern::literal(std::string_view text) {
  if (text.empty()) return invalid_argument("the tokenizer has an empty pattern");
  return compile(text, PCRE2_LITERAL);
}

Pattern::~Pattern() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

Result<void> Pattern::find_all(std::string_view subject, std::size_t base, std::vector<Span>& out) const {
  thread_local MatchState state;
  if (!state.ok()) return Error{ErrorCode::kInternal, "no memory for matching the tokenizer's pattern", {}};
  std::size_t at = 0;
  std::size_t last_end = std::string_view::npos;
  while (at <= subject.size()) {
    const int count = pcre2_match(static_cast<const pcre2_code*>(code_), units(subject), subject.size(), at,
                                  PCRE2_NO_UTF_CHECK, state.data(), state.context());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) return invalid_argument("the text takes too many steps in the tokenizer's pattern");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data());
    const Span match{range[0], range[1]};
    if (match.end < match.begin)
      return invalid_argument("the tokenizer has a pattern whose match ends before it starts");
    if (match.begin == match.end) {
      if (match.begin != last_end) out.push_back({base + match.begin, base + match.end});
      at = match.end < subject.size() ? match.end + character_bytes(subject[match.end]) : subject.size() + 1;
    } else {
      out.push_back({base + match.begin, base + match.end});
      at = match.end;
    }
    last_end = match.end;
  }
  return {};
}

}  // namespace hotset::model
