#pragma once
// From a request's prompt to tokens.

#include <cstddef>
#include <memory>
#include <vector>

#include "cairn/common/status.h"
#include "model/model.h"
#include "services/router/engine/piece_cache.h"
#include "services/router/engine/router.h"

namespace cairn::router {

class PromptEncoder;

// One prompt on its way to tokens, in steps: a long text holds up nothing else for long. Not
// thread-safe. The encoder and the request must outlive it.
class PromptEncoding {
 public:
  // As PromptEncoder::Encode, which it is a part of.
  PromptEncoding(PromptEncoder* encoder, const GenerateRequest& request, uint32_t context_tokens);
  ~PromptEncoding();
  PromptEncoding(const PromptEncoding&) = delete;
  PromptEncoding& operator=(const PromptEncoding&) = delete;

  // Does the work of about `bytes` bytes. True: Take has the result.
  bool Step(size_t bytes);
  // Bytes of the prompt that no step has come to, as far as is known.
  size_t left() const;
  // Bytes of memory that it takes now, without the request.
  size_t memory() const;
  // Once.
  Result<std::vector<model::TokenId>> Take();

 private:
  Status Begin();
  Status StepPiece(size_t bytes);
  void EndPiece(const std::vector<model::TokenId>& ids);
  Status TooLong() const;

  PromptEncoder* const encoder_;
  const GenerateRequest& request_;
  const uint32_t context_tokens_;
  bool begun_ = false;
  bool chat_ = false;
  std::vector<model::PromptPiece> pieces_;  // The pieces of a chat.
  size_t next_ = 0;                         // The next one of the pieces.
  // The encoding of the piece, or of the text. nullptr: the next piece has not begun.
  std::unique_ptr<model::TextEncoding> encoding_;
  std::vector<model::TokenId> ids_;
  Status status_;
};

// Thread-safe.
class PromptEncoder {
 public:
  // `model` must outlive it.
  PromptEncoder(const model::Model& model, size_t cache_bytes)
      : model_(model), cache_(cache_bytes) {}

  // The tokens that the worker would make of the same prompt, 1 to context_tokens - 1.
  // INVALID_ARGUMENT: the message says what is wrong with the prompt, and begins with the place in
  // it where there is one. UNIMPLEMENTED and NOT_FOUND: the model has no chat template that is
  // known.
  Result<std::vector<model::TokenId>> Encode(const GenerateRequest& request,
                                             uint32_t context_tokens);
  PieceCache::Numbers cache() const { return cache_.numbers(); }
  const model::Model& model() const { return model_; }

 private:
  friend class PromptEncoding;

  const model::Model& model_;
  PieceCache cache_;
};

}  // namespace cairn::router
