#include "model/tokenizer.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "model/bpe.h"
#include "model/gguf.h"
#include "model/pre_tokenizer.h"
#include "model/utf8.h"

namespace cairn::model {
namespace {

// tokenizer.ggml.token_type.
enum class TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
};

// Byte-level vocabularies spell bytes as printable characters: those of ASCII and Latin-1 stand for
// themselves, the 68 others follow from U+0100 in order.
std::array<std::string, 256> ByteSpellings() {
  std::array<std::string, 256> spellings;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    AppendUtf8(printable ? b : next++, &spellings[b]);
  }
  return spellings;
}

// Finds special tokens in text: the leftmost, and of those the longest.
class SpecialMatcher {
 public:
  void Add(std::string_view text, TokenId id) {
    if (!text.empty()) by_lead_[static_cast<uint8_t>(text[0])].emplace_back(text, id);
  }
  void Finish() {
    for (auto& list : by_lead_) {
      std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
        return a.first.size() > b.first.size();
      });
    }
  }

  using Entry = std::pair<std::string_view, TokenId>;
  // The special token that `text` begins with, or nullptr.
  const Entry* Match(std::string_view text) const {
    for (const Entry& entry : by_lead_[static_cast<uint8_t>(text[0])]) {
      if (text.starts_with(entry.first)) return &entry;
    }
    return nullptr;
  }

 private:
  std::array<std::vector<Entry>, 256> by_lead_;
};

}  // namespace

struct Tokenizer::Impl {
  // Spellings point into the GGUF file, so the file must outlive us; decoded bytes are ours.
  std::vector<std::string_view> spellings;
  std::vector<std::string> bytes;
  std::vector<TokenType> types;
  absl::flat_hash_map<std::string_view, TokenId> by_spelling;
  std::unique_ptr<const PreTokenizer> pre;
  std::unique_ptr<const BytePairEncoder> bpe;
  SpecialMatcher always;        // User-defined tokens.
  SpecialMatcher with_control;  // And control tokens.
  // Bytes of normal tokens, where they come first.
  absl::flat_hash_map<std::string_view, TokenId> whole_pieces;
  std::vector<TokenId> end_of_generation;
  std::optional<TokenId> bos, eos;
  bool add_bos = false;
  size_t max_token_bytes = 1;

  Status ReadVocabulary(const GgufFile& file);
  Status ReadMerges(const GgufFile& file);
  Status ReadOptions(const GgufFile& file);
  Status ReadSpecialIds(const GgufFile& file);
  void BuildMatchers();
  void DecodeSpellings(const std::array<std::string, 256>& byte_spellings);
  bool Contains(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < types.size(); }
  bool IsControl(TokenId id) const {
    const TokenType type = types[static_cast<size_t>(id)];
    return type == TokenType::kControl || type == TokenType::kUnknown;
  }
};

Status Tokenizer::Impl::ReadVocabulary(const GgufFile& file) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
  CAIRN_ASSIGN_OR_RETURN(spellings, file.GetStringArray(kTokens));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, file.GetIntArray(kTypes));
  if (spellings.empty() || spellings.size() > size_t{1} << 24) {
    return InvalidArgument("{} has {} entries, expected 1 to 2^24", kTokens, spellings.size());
  }
  if (numbers.size() != spellings.size()) {
    return InvalidArgument("{} has {} entries, expected {} as in {}", kTypes, numbers.size(),
                           spellings.size(), kTokens);
  }
  types.reserve(numbers.size());
  by_spelling.reserve(spellings.size());
  for (size_t i = 0; i < spellings.size(); ++i) {
    if (numbers[i] < 1 || numbers[i] > 5) {
      return Errorf(StatusCode::kUnimplemented,
                    "{}[{}] is {}: expected 1 (normal) to 5 (unused) in a byte-level vocabulary",
                    kTypes, i, numbers[i]);
    }
    types.push_back(static_cast<TokenType>(numbers[i]));
    const auto [it, fresh] = by_spelling.try_emplace(spellings[i], static_cast<TokenId>(i));
    if (!fresh) {
      return InvalidArgument("{}[{}] and [{}] are the same token", kTokens, it->second, i);
    }
  }
  return OkStatus();
}

Status Tokenizer::Impl::ReadMerges(const GgufFile& file) {
  constexpr std::string_view kMerges = "tokenizer.ggml.merges";
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string_view> lines, file.GetStringArray(kMerges));
  std::vector<BytePairEncoder::Merge> merges;
  merges.reserve(lines.size());
  std::string joined;
  for (size_t i = 0; i < lines.size(); ++i) {
    // Neither side is empty and neither contains a space: a byte-level vocabulary spells the space
    // as U+0120.
    const size_t space = lines[i].find(' ');
    if (space == std::string_view::npos ||
        lines[i].find(' ', space + 1) != std::string_view::npos) {
      return InvalidArgument("{}[{}] is not two tokens with a space between", kMerges, i);
    }
    const std::string_view left = lines[i].substr(0, space), right = lines[i].substr(space + 1);
    joined.assign(left).append(right);
    const auto l = by_spelling.find(left), r = by_spelling.find(right);
    const auto result = by_spelling.find(joined);
    if (l == by_spelling.end() || r == by_spelling.end() || result == by_spelling.end()) {
      return InvalidArgument("{}[{}] joins tokens, or makes one, that tokenizer.ggml.tokens lacks",
                             kMerges, i);
    }
    // Otherwise ordinary text could become a control token.
    if (IsControl(result->second)) {
      return InvalidArgument("{}[{}] makes the control token {}", kMerges, i, result->second);
    }
    merges.push_back({l->second, r->second, result->second});
  }
  const std::array<std::string, 256> byte_spellings = ByteSpellings();
  std::array<TokenId, 256> byte_tokens;
  for (size_t b = 0; b < 256; ++b) {
    const auto it = by_spelling.find(byte_spellings[b]);
    byte_tokens[b] = it == by_spelling.end() || IsControl(it->second) ? -1 : it->second;
  }
  bpe = std::make_unique<BytePairEncoder>(byte_tokens, merges);
  DecodeSpellings(byte_spellings);
  return OkStatus();
}

void Tokenizer::Impl::DecodeSpellings(const std::array<std::string, 256>& byte_spellings) {
  absl::flat_hash_map<std::string_view, char> byte_of;
  for (size_t b = 0; b < 256; ++b) byte_of[byte_spellings[b]] = static_cast<char>(b);
  bytes.resize(spellings.size());
  for (size_t i = 0; i < spellings.size(); ++i) {
    const std::string_view spelling = spellings[i];
    std::string& out = bytes[i];
    bool byte_level = types[i] == TokenType::kNormal || types[i] == TokenType::kUnused;
    for (size_t at = 0; byte_level && at < spelling.size();) {
      const Utf8Step step = NextUtf8(spelling.substr(at));
      const auto it = byte_of.find(spelling.substr(at, step.bytes));
      byte_level = step.kind == Utf8Kind::kComplete && it != byte_of.end();
      if (byte_level) out += it->second;
      at += step.bytes;
    }
    // Special tokens, and tokens that are not spelled byte by byte, stand for their own text.
    if (!byte_level) out = spelling;
    max_token_bytes = std::max(max_token_bytes, out.size());
  }
}

Status Tokenizer::Impl::ReadOptions(const GgufFile& file) {
  add_bos = pre->default_add_bos();
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    CAIRN_ASSIGN_OR_RETURN(add_bos, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  for (const std::string_view key :
       {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token",
        "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"}) {
    if (!file.Has(key)) continue;
    CAIRN_ASSIGN_OR_RETURN(const bool on, file.GetBool(key));
    if (on) {
      return Errorf(StatusCode::kUnimplemented, "metadata '{}' is true, which is not supported",
                    key);
    }
  }
  return OkStatus();
}

Status Tokenizer::Impl::ReadSpecialIds(const GgufFile& file) {
  const auto read = [&](std::string_view name, std::optional<TokenId>* out) -> Status {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (!file.Has(key)) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
    if (id < 0 || id >= static_cast<int64_t>(types.size())) {
      return InvalidArgument("metadata '{}' is {}, expected 0 to {}", key, id, types.size() - 1);
    }
    *out = static_cast<TokenId>(id);
    return OkStatus();
  };
  std::optional<TokenId> eot, eom;
  CAIRN_RETURN_IF_ERROR(read("bos", &bos));
  CAIRN_RETURN_IF_ERROR(read("eos", &eos));
  CAIRN_RETURN_IF_ERROR(read("eot", &eot));
  CAIRN_RETURN_IF_ERROR(read("eom", &eom));
  for (const std::optional<TokenId>& id : {eos, eot, eom}) {
    if (id.has_value()) end_of_generation.push_back(*id);
  }
  if (add_bos && !bos.has_value()) {
    return InvalidArgument(
        "a begin-of-text token is to be added (tokenizer.ggml.add_bos_token), "
        "but tokenizer.ggml.bos_token_id is missing");
  }
  return OkStatus();
}

void Tokenizer::Impl::BuildMatchers() {
  for (size_t i = 0; i < types.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (types[i] == TokenType::kUserDefined) {
      always.Add(spellings[i], id);
      with_control.Add(spellings[i], id);
    } else if (IsControl(id)) {
      with_control.Add(spellings[i], id);
    } else if (pre->whole_pieces_first() && types[i] == TokenType::kNormal) {
      whole_pieces.try_emplace(bytes[i], id);
    }
  }
  always.Finish();
  with_control.Finish();
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  const auto annotate = [&](const Status& status) {
    return Annotate(status, fmt::format("tokenizer of model file '{}'", file.name()));
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return annotate(Errorf(StatusCode::kUnimplemented,
                           "tokenizer.ggml.model is '{}', which is not supported; supported: gpt2 "
                           "(byte-level BPE)",
                           model));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string_view pre, file.GetString("tokenizer.ggml.pre"));
  auto created = PreTokenizer::Create(pre);
  if (!created.ok()) return annotate(created.status());
  auto impl = std::make_unique<Impl>();
  impl->pre = std::move(*created);
  for (const auto step :
       {&Impl::ReadVocabulary, &Impl::ReadMerges, &Impl::ReadOptions, &Impl::ReadSpecialIds}) {
    const Status status = ((*impl).*step)(file);
    if (!status.ok()) return annotate(status);
  }
  impl->BuildMatchers();
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  TextEncoding encoding(*this, text, parse_special);
  CAIRN_RETURN_IF_ERROR(encoding.Step(std::numeric_limits<size_t>::max()).status());
  return encoding.TakeIds();
}

Result<std::vector<TokenId>> Tokenizer::EncodePrompt(std::span<const PromptPiece> pieces) const {
  std::vector<TokenId> ids;
  if (impl_->add_bos) ids.push_back(*impl_->bos);
  for (const PromptPiece& piece : pieces) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<TokenId> more,
                           Encode(piece.text, piece.parse_special));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  // A prompt that spells the token itself must not get it twice.
  if (impl_->add_bos && ids.size() > 1 && ids[1] == ids[0]) ids.erase(ids.begin());
  return ids;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  return impl_->bytes[static_cast<size_t>(id)];
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool with_special) const {
  std::string out;
  for (const TokenId id : ids) {
    if (impl_->Contains(id) && (with_special || !impl_->IsControl(id))) out += TokenBytes(id);
  }
  return out;
}

size_t Tokenizer::max_token_bytes() const { return impl_->max_token_bytes; }

TokenId Tokenizer::vocab_size() const { return static_cast<TokenId>(impl_->types.size()); }

bool Tokenizer::IsControl(TokenId id) const { return impl_->Contains(id) && impl_->IsControl(id); }

bool Tokenizer::IsEndOfGeneration(TokenId id) const {
  const auto& ids = impl_->end_of_generation;
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::optional<TokenId> Tokenizer::Find(std::string_view name) const {
  const auto it = impl_->by_spelling.find(name);
  if (it == impl_->by_spelling.end()) return std::nullopt;
  return it->second;
}

std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }

struct TextEncoding::Part {
  Part(const PreTokenizer& pre, std::string_view text) : pieces(pre, text) {}
  struct Range {
    size_t begin, end;
  };
  PreTokenizer::Pieces pieces;
  // Most words of a text come more than once: their ids are copied from where they stand in the
  // result.
  absl::flat_hash_map<std::string_view, Range> seen;
  std::optional<BytePairEncoder::Run> word;  // A long piece that is encoded now.
};

TextEncoding::TextEncoding(const Tokenizer& tokenizer, std::string_view text, bool parse_special)
    : tokenizer_(*tokenizer.impl_), text_(text), parse_special_(parse_special) {}

TextEncoding::~TextEncoding() = default;

size_t TextEncoding::left() const {
  const size_t word = part_ != nullptr && part_->word ? part_->word->left() : 0;
  return text_.size() - begin_ + word;
}

size_t TextEncoding::memory() const {
  size_t bytes = ids_.capacity() * sizeof(TokenId);
  if (part_ != nullptr) {
    bytes += part_->seen.capacity() * (sizeof(std::string_view) + sizeof(Part::Range));
    if (part_->word) bytes += part_->word->memory();
  }
  return bytes;
}

Result<bool> TextEncoding::Step(size_t bytes) {
  size_t budget = bytes;
  while (budget > 0) {
    if (checked_ < text_.size()) {
      CAIRN_RETURN_IF_ERROR(CheckUtf8(&budget));
    } else if (part_ != nullptr) {
      CAIRN_RETURN_IF_ERROR(StepPart(&budget));
    } else if (special_) {
      ids_.push_back(*std::exchange(special_, std::nullopt));
    } else if (at_ < text_.size()) {
      FindPart(&budget);
    } else {
      return true;
    }
  }
  return false;
}

namespace {

// The cost of cheap work on bytes, next to encoding them.
constexpr size_t kCheap = 64;
// Long pieces are rare, and hashing them would cost more than it saves.
constexpr size_t kLongestSeen = 32;
// A longer piece is encoded in steps.
constexpr size_t kLongPiece = 256;

// `bytes` of work are done.
void Spend(size_t bytes, size_t* budget) {
  *budget -= std::min(*budget, std::max<size_t>(1, bytes));
}

}  // namespace

Status TextEncoding::CheckUtf8(size_t* budget) {
  constexpr size_t kLongestCharacter = 4;
  const size_t most = std::min(*budget, text_.size() / kCheap + 1) * kCheap;
  const std::string_view part = text_.substr(checked_, most + kLongestCharacter);
  const size_t valid = ValidUtf8Prefix(part);
  Spend(part.size() / kCheap, budget);
  checked_ += valid;
  // The end of the part may be in the middle of a character.
  if (valid == part.size() || (checked_ < text_.size() && part.size() - valid < kLongestCharacter &&
                               checked_ + (part.size() - valid) < text_.size())) {
    return OkStatus();
  }
  return InvalidArgument("text is not valid UTF-8 at byte {} of {} (0x{:02x})", checked_,
                         text_.size(), static_cast<uint8_t>(text_[checked_]));
}

void TextEncoding::FindPart(size_t* budget) {
  const SpecialMatcher& matcher = parse_special_ ? tokenizer_.with_control : tokenizer_.always;
  const size_t most = std::min(*budget, text_.size() / kCheap + 1) * kCheap;
  const size_t stop = std::min(text_.size(), at_ + most);
  const size_t from = at_;
  const auto* found = static_cast<const SpecialMatcher::Entry*>(nullptr);
  while (at_ < stop && (found = matcher.Match(text_.substr(at_))) == nullptr) ++at_;
  Spend((at_ - from) / kCheap, budget);
  if (found == nullptr && at_ < text_.size()) return;
  if (at_ > begin_) {
    part_ = std::make_unique<Part>(*tokenizer_.pre, text_.substr(begin_, at_ - begin_));
  }
  if (found != nullptr) {
    special_ = found->second;
    at_ += found->first.size();
  }
  if (part_ == nullptr) begin_ = at_;
}

Status TextEncoding::StepPart(size_t* budget) {
  Part& part = *part_;
  if (part.word) {
    if (part.word->Step(budget, &ids_)) part.word.reset();
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const auto piece, part.pieces.Next());
  if (!piece) {
    part_.reset();
    begin_ = at_;
    return OkStatus();
  }
  EncodePiece(*piece);
  begin_ += piece->size();
  if (!part.word) Spend(piece->size(), budget);
  return OkStatus();
}

void TextEncoding::EncodePiece(std::string_view piece) {
  const auto encode = [&] {
    const auto whole = tokenizer_.whole_pieces.find(piece);
    if (whole != tokenizer_.whole_pieces.end()) {
      ids_.push_back(whole->second);
    } else if (piece.size() > kLongPiece) {
      part_->word.emplace(*tokenizer_.bpe, piece);
    } else {
      tokenizer_.bpe->Encode(piece, &ids_);
    }
  };
  if (piece.size() > kLongestSeen) return encode();
  const auto [it, fresh] = part_->seen.try_emplace(piece, Part::Range{ids_.size(), 0});
  if (fresh) {
    encode();
    it->second.end = ids_.size();
  } else {
    for (size_t i = it->second.begin; i < it->second.end; ++i) ids_.push_back(ids_[i]);
  }
}

std::string StreamDecoder::Add(TokenId id) {
  pending_ += tokenizer_.Decode(std::span(&id, 1), with_special_);
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = NextUtf8(std::string_view(pending_).substr(at));
    if (step.kind == Utf8Kind::kIncomplete) break;
    if (step.kind == Utf8Kind::kComplete) {
      out.append(pending_, at, step.bytes);
    } else {
      AppendUtf8(0xfffd, &out);
    }
    at += step.bytes;
  }
  pending_.erase(0, at);
  return out;
}

std::string StreamDecoder::Finish() {
  std::string out;
  if (!pending_.empty()) AppendUtf8(0xfffd, &out);
  pending_.clear();
  return out;
}

}  // namespace cairn::model
