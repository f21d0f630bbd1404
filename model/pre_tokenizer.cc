#include "model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <iterator>
#include <string>
#include <utility>

namespace cairn::worker {
namespace {

// White space is spelled \p{White_Space}: PCRE's \s adds U+180E, which the reference tokenizers do
// not treat as a space.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+)"
    R"(|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*|\p{White_Space}*[\r\n]+)"
    R"(|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";

struct Known {
  std::string_view name;
  std::vector<std::string_view> patterns;
  bool whole_pieces_first;
  bool default_add_bos;
};

const std::vector<Known>& KnownPreTokenizers() {
  static const std::vector<Known> known = {
      {"gpt-2", {kGpt2}, false, false},
      {"smollm", {kDigit, kGpt2}, false, false},
      {"llama-bpe", {kLlama3}, true, true},
  };
  return known;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

Status RegexError(std::string_view doing, int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return Errorf(StatusCode::kInternal, "pre-tokenizer: cannot {} the pattern: {}", doing,
                reinterpret_cast<const char*>(text));
}

}  // namespace

class PreTokenizer::Pattern {
 public:
  static Result<Pattern> Compile(std::string_view pattern) {
    int code = 0;
    PCRE2_SIZE at = 0;
    Pattern out;
    out.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP, &code, &at, nullptr));
    if (out.code_ == nullptr) return RegexError("compile", code);
    // Where the JIT is not available (a hardened kernel), matching interprets: slower, same result.
    pcre2_jit_compile(out.code_.get(), PCRE2_JIT_COMPLETE);
    return out;
  }

  // Appends the matches in `text` and what lies between them.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (match == nullptr) {
      return Errorf(StatusCode::kResourceExhausted, "pre-tokenizer: no memory for a match");
    }
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t at = 0;
    while (at < text.size()) {
      const int rc = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                                 match.get(), nullptr);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) return RegexError("match", rc);
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
      if (ends[0] > at) pieces->push_back(text.substr(at, ends[0] - at));
      pieces->push_back(text.substr(ends[0], ends[1] - ends[0]));
      at = ends[1];  // No pattern matches the empty string, so this moves on.
    }
    if (at < text.size()) pieces->push_back(text.substr(at));
    return OkStatus();
  }

 private:
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  std::string names;
  for (const Known& known : KnownPreTokenizers()) {
    names += (names.empty() ? "" : ", ") + std::string(known.name);
    if (known.name != name) continue;
    std::unique_ptr<PreTokenizer> out(new PreTokenizer());
    for (const std::string_view text : known.patterns) {
      CAIRN_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(text));
      out->patterns_.push_back(std::move(pattern));
    }
    out->whole_pieces_first_ = known.whole_pieces_first;
    out->default_add_bos_ = known.default_add_bos;
    return std::unique_ptr<const PreTokenizer>(std::move(out));
  }
  return Errorf(StatusCode::kUnimplemented,
                "pre-tokenizer '{}' (tokenizer.ggml.pre) is not supported; supported: {}", name,
                names);
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  std::vector<std::string_view> current = {text}, next;
  for (const Pattern& pattern : patterns_) {
    next.clear();
    for (const std::string_view piece : current) {
      CAIRN_RETURN_IF_ERROR(pattern.Split(piece, &next));
    }
    current.swap(next);
  }
  pieces->insert(pieces->end(), current.begin(), current.end());
  return OkStatus();
}

}  // namespace cairn::worker
