#pragma once
// From a request's prompt to tokens.

#include <cstddef>
#include <vector>

#include "cairn/common/status.h"
#include "model/model.h"
#include "services/router/engine/piece_cache.h"
#include "services/router/engine/router.h"

namespace cairn::router {

// Thread-safe.
class PromptEncoder {
 public:
  // `model` must outlive it.
  PromptEncoder(const worker::Model& model, size_t cache_bytes)
      : model_(model), cache_(cache_bytes) {}

  // The tokens that the worker would make of the same prompt, 1 to context_tokens - 1.
  // INVALID_ARGUMENT: the message says what is wrong with the prompt, and begins with the place in
  // it where there is one. UNIMPLEMENTED and NOT_FOUND: the model has no chat template that is
  // known.
  Result<std::vector<worker::TokenId>> Encode(const GenerateRequest& request,
                                              uint32_t context_tokens);
  PieceCache::Numbers cache() const { return cache_.numbers(); }
  const worker::Model& model() const { return model_; }

 private:
  using TokenIds = std::vector<worker::TokenId>;
  Result<TokenIds> EncodeChat(const std::vector<worker::ChatMessage>& messages,
                              uint32_t context_tokens);
  Result<TokenIds> EncodeText(const std::string& text, uint32_t context_tokens) const;
  Result<TokenIds> CheckIds(const TokenIds& ids) const;
  Status AppendPiece(const worker::PromptPiece& piece, TokenIds* ids);

  const worker::Model& model_;
  PieceCache cache_;
};

}  // namespace cairn::router
