#include "services/router/engine/prompt_encoder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "model/request_limits.h"

namespace cairn::router {
namespace {

// Text that cannot fit the context however long its tokens are is refused before the work of making
// tokens of it.
Status CheckLength(const model::Model& model, uint32_t context_tokens, size_t bytes) {
  const size_t most = context_tokens * model.tokenizer().max_token_bytes();
  if (bytes <= most) return OkStatus();
  return Errorf(StatusCode::kOutOfRange, "got {} bytes, expected at most {} for {} tokens", bytes,
                most, context_tokens);
}

Status CheckIds(const model::Tokenizer& tokenizer, const std::vector<model::TokenId>& ids) {
  const model::TokenId vocabulary = tokenizer.vocab_size();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary) {
      return InvalidArgument("token {}: got {}, expected 0 to {}", i, ids[i], vocabulary - 1);
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<model::TokenId>> PromptEncoder::Encode(const GenerateRequest& request,
                                                          uint32_t context_tokens) {
  PromptEncoding encoding(this, request, context_tokens);
  while (!encoding.Step(std::numeric_limits<size_t>::max())) {
  }
  return encoding.Take();
}

PromptEncoding::PromptEncoding(PromptEncoder* encoder, const GenerateRequest& request,
                               uint32_t context_tokens)
    : encoder_(encoder), request_(request), context_tokens_(context_tokens) {}

PromptEncoding::~PromptEncoding() = default;

size_t PromptEncoding::left() const {
  size_t bytes = encoding_ == nullptr ? 0 : encoding_->left();
  for (size_t i = next_; i < pieces_.size(); ++i) bytes += pieces_[i].text.size();
  return bytes;
}

size_t PromptEncoding::memory() const {
  size_t bytes = ids_.capacity() * sizeof(model::TokenId);
  for (const model::PromptPiece& piece : pieces_) bytes += sizeof piece + piece.text.capacity();
  return encoding_ == nullptr ? bytes : bytes + encoding_->memory();
}

Status PromptEncoding::TooLong() const {
  const size_t tokens = ids_.size() + (encoding_ == nullptr ? 0 : encoding_->ids().size());
  return Errorf(StatusCode::kOutOfRange, "got at least {} tokens, expected 1 to {}", tokens,
                context_tokens_ - 1);
}

Status PromptEncoding::Begin() {
  const model::Model& model = encoder_->model_;
  if (const auto* ids = std::get_if<std::vector<model::TokenId>>(&request_.prompt)) {
    CAIRN_RETURN_IF_ERROR(CheckIds(model.tokenizer(), *ids));
    ids_ = *ids;
    return OkStatus();
  }
  if (const auto* text = std::get_if<std::string>(&request_.prompt)) {
    CAIRN_RETURN_IF_ERROR(CheckLength(model, context_tokens_, text->size()));
    encoding_ = std::make_unique<model::TextEncoding>(model.tokenizer(), *text,
                                                      /*parse_special=*/true);
    return OkStatus();
  }
  const auto& messages = std::get<std::vector<model::ChatMessage>>(request_.prompt);
  if (messages.empty() || messages.size() > model::kMaxMessages) {
    return InvalidArgument("got {} messages, expected 1 to {}", messages.size(),
                           model::kMaxMessages);
  }
  CAIRN_ASSIGN_OR_RETURN(const model::ChatTemplate* chat, model.chat_template());
  CAIRN_ASSIGN_OR_RETURN(pieces_, chat->Render(messages, /*add_generation_prompt=*/true));
  size_t bytes = 0;
  for (const model::PromptPiece& piece : pieces_) bytes += piece.text.size();
  CAIRN_RETURN_IF_ERROR(CheckLength(model, context_tokens_, bytes));
  // As Tokenizer::EncodePrompt, which makes tokens of each piece for itself.
  chat_ = true;
  if (model.tokenizer().add_bos()) ids_.push_back(*model.tokenizer().bos());
  return OkStatus();
}

// Works on the piece that is encoded, or on the next one.
Status PromptEncoding::StepPiece(size_t bytes) {
  if (encoding_ == nullptr) {
    const model::PromptPiece& piece = pieces_[next_];
    // Pieces with special tokens are the template's own: short.
    const PieceCache::Tokens known =
        piece.parse_special ? nullptr : encoder_->cache_.Find(piece.text);
    if (known != nullptr) {
      EndPiece(*known);
      return OkStatus();
    }
    encoding_ = std::make_unique<model::TextEncoding>(encoder_->model_.tokenizer(), piece.text,
                                                      piece.parse_special);
  }
  CAIRN_ASSIGN_OR_RETURN(const bool done, encoding_->Step(bytes));
  // Later pieces cannot make it shorter.
  if (ids_.size() + encoding_->ids().size() > context_tokens_) return TooLong();
  if (!done) return OkStatus();
  const std::vector<model::TokenId> made = encoding_->TakeIds();
  encoding_.reset();
  if (chat_ && !pieces_[next_].parse_special) {
    encoder_->cache_.Add(pieces_[next_].text,
                         std::make_shared<const std::vector<model::TokenId>>(made));
  }
  EndPiece(made);
  return OkStatus();
}

void PromptEncoding::EndPiece(const std::vector<model::TokenId>& ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  if (!chat_) return;
  pieces_[next_].text = std::string();
  ++next_;
}

bool PromptEncoding::Step(size_t bytes) {
  if (!std::exchange(begun_, true)) {
    status_ = Begin();
    if (!status_.ok()) return true;
  }
  size_t budget = bytes;
  while (encoding_ != nullptr || next_ < pieces_.size()) {
    const size_t before = left();
    status_ = StepPiece(budget);
    if (!status_.ok()) return true;
    const size_t done = before - std::min(before, left());
    budget -= std::min(budget, std::max<size_t>(1, done));
    if (budget == 0 || encoding_ != nullptr) return false;
  }
  return true;
}

Result<std::vector<model::TokenId>> PromptEncoding::Take() {
  CAIRN_RETURN_IF_ERROR(status_);
  if (chat_ && encoder_->model_.tokenizer().add_bos() && ids_.size() > 1 && ids_[1] == ids_[0]) {
    ids_.erase(ids_.begin());
  }
  if (ids_.empty() || ids_.size() >= context_tokens_) {
    return Errorf(ids_.empty() ? StatusCode::kInvalidArgument : StatusCode::kOutOfRange,
                  "got {} tokens, expected 1 to {}", ids_.size(), context_tokens_ - 1);
  }
  return std::move(ids_);
}

}  // namespace cairn::router
