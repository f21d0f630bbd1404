#include "model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <iterator>
#include <string>
#include <utility>

namespace cairn::model {
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

  using MatchData = std::unique_ptr<pcre2_match_data, FreeMatch>;
  // RESOURCE_EXHAUSTED: no memory.
  Result<MatchData> MakeMatchData() const {
    MatchData match(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (match == nullptr) {
      return Errorf(StatusCode::kResourceExhausted, "pre-tokenizer: no memory for a match");
    }
    return match;
  }
  // Begin and end of the first match from `at` on, never empty; both are the end of the text if
  // there is none.
  Result<std::pair<size_t, size_t>> Find(std::string_view text, size_t at,
                                         pcre2_match_data* match) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int rc =
        pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) return std::pair(text.size(), text.size());
    if (rc < 0) return RegexError("match", rc);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
    return std::pair<size_t, size_t>(ends[0], ends[1]);
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

// The matches of one pattern in one text after the other, and what lies between them.
struct PreTokenizer::Pieces::Level {
  const Pattern* pattern = nullptr;
  Pattern::MatchData match;
  std::string_view text;
  size_t at = 0;
  size_t match_end = 0;  // The end of a match that begins at `at` and is the next piece. 0: none.
};

PreTokenizer::Pieces::Pieces(const PreTokenizer& pre, std::string_view text) {
  for (const Pattern& pattern : pre.patterns_) {
    levels_.emplace_back();
    levels_.back().pattern = &pattern;
  }
  levels_.front().text = text;
}

PreTokenizer::Pieces::~Pieces() = default;
PreTokenizer::Pieces::Pieces(Pieces&&) noexcept = default;
PreTokenizer::Pieces& PreTokenizer::Pieces::operator=(Pieces&&) noexcept = default;

Result<std::optional<std::string_view>> PreTokenizer::Pieces::Next() {
  return NextAt(levels_.size() - 1);
}

// It calls itself once for each pattern.
Result<std::optional<std::string_view>> PreTokenizer::Pieces::NextAt(size_t index) {
  Level& level = levels_[index];
  const auto piece = [&level](size_t end) {
    const std::string_view found = level.text.substr(level.at, end - level.at);
    level.at = end;
    return std::optional(found);
  };
  while (level.at == level.text.size()) {
    if (index == 0) return std::optional<std::string_view>();
    CAIRN_ASSIGN_OR_RETURN(const auto above, NextAt(index - 1));
    if (!above) return above;
    level.text = *above;
    level.at = 0;
  }
  if (level.match_end > 0) return piece(std::exchange(level.match_end, 0));
  if (level.match == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(level.match, level.pattern->MakeMatchData());
  }
  CAIRN_ASSIGN_OR_RETURN(const auto match,
                         level.pattern->Find(level.text, level.at, level.match.get()));
  if (match.first == level.at) return piece(match.second);
  if (match.first < level.text.size()) level.match_end = match.second;
  return piece(match.first);
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  Pieces all(*this, text);
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const auto piece, all.Next());
    if (!piece) return OkStatus();
    pieces->push_back(*piece);
  }
}

}  // namespace cairn::model
