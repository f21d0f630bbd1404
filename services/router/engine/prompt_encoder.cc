#include "services/router/engine/prompt_encoder.h"

#include <utility>

#include "model/request_limits.h"

namespace cairn::router {
namespace {

// Text that cannot fit the context however long its tokens are is refused before the work of making
// tokens of it.
Status CheckLength(const worker::Model& model, uint32_t context_tokens, size_t bytes) {
  const size_t most = context_tokens * model.tokenizer().max_token_bytes();
  if (bytes <= most) return OkStatus();
  return Errorf(StatusCode::kOutOfRange, "got {} bytes, expected at most {} for {} tokens", bytes,
                most, context_tokens);
}

}  // namespace

Result<std::vector<worker::TokenId>> PromptEncoder::Encode(const GenerateRequest& request,
                                                           uint32_t context_tokens) {
  Result<TokenIds> ids = TokenIds();
  if (const auto* messages = std::get_if<std::vector<worker::ChatMessage>>(&request.prompt)) {
    ids = EncodeChat(*messages, context_tokens);
  } else if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    ids = EncodeText(*text, context_tokens);
  } else {
    ids = CheckIds(std::get<TokenIds>(request.prompt));
  }
  if (!ids.ok()) return ids;
  if (ids->empty() || ids->size() >= context_tokens) {
    return Errorf(ids->empty() ? StatusCode::kInvalidArgument : StatusCode::kOutOfRange,
                  "got {} tokens, expected 1 to {}", ids->size(), context_tokens - 1);
  }
  return ids;
}

Result<std::vector<worker::TokenId>> PromptEncoder::EncodeChat(
    const std::vector<worker::ChatMessage>& messages, uint32_t context_tokens) {
  if (messages.empty() || messages.size() > worker::kMaxMessages) {
    return InvalidArgument("got {} messages, expected 1 to {}", messages.size(),
                           worker::kMaxMessages);
  }
  CAIRN_ASSIGN_OR_RETURN(const worker::ChatTemplate* chat, model_.chat_template());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<worker::PromptPiece> pieces,
                         chat->Render(messages, /*add_generation_prompt=*/true));
  size_t bytes = 0;
  for (const worker::PromptPiece& piece : pieces) bytes += piece.text.size();
  CAIRN_RETURN_IF_ERROR(CheckLength(model_, context_tokens, bytes));
  // As Tokenizer::EncodePrompt, which makes tokens of each piece for itself.
  const worker::Tokenizer& tokenizer = model_.tokenizer();
  TokenIds ids;
  if (tokenizer.add_bos()) ids.push_back(*tokenizer.bos());
  for (const worker::PromptPiece& piece : pieces) CAIRN_RETURN_IF_ERROR(AppendPiece(piece, &ids));
  if (tokenizer.add_bos() && ids.size() > 1 && ids[1] == ids[0]) ids.erase(ids.begin());
  return ids;
}

Status PromptEncoder::AppendPiece(const worker::PromptPiece& piece, TokenIds* ids) {
  const worker::Tokenizer& tokenizer = model_.tokenizer();
  // Pieces with special tokens are the template's own: short.
  PieceCache::Tokens known = piece.parse_special ? nullptr : cache_.Find(piece.text);
  if (known == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(TokenIds made, tokenizer.Encode(piece.text, piece.parse_special));
    known = std::make_shared<const TokenIds>(std::move(made));
    if (!piece.parse_special) cache_.Add(piece.text, known);
  }
  ids->insert(ids->end(), known->begin(), known->end());
  return OkStatus();
}

Result<std::vector<worker::TokenId>> PromptEncoder::EncodeText(const std::string& text,
                                                               uint32_t context_tokens) const {
  CAIRN_RETURN_IF_ERROR(CheckLength(model_, context_tokens, text.size()));
  return model_.tokenizer().Encode(text, /*parse_special=*/true);
}

Result<std::vector<worker::TokenId>> PromptEncoder::CheckIds(const TokenIds& ids) const {
  const worker::TokenId vocabulary = model_.tokenizer().vocab_size();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary) {
      return InvalidArgument("token {}: got {}, expected 0 to {}", i, ids[i], vocabulary - 1);
    }
  }
  return ids;
}

}  // namespace cairn::router
