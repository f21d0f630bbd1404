#pragma once
// From logits to the tokens and the text of one answer.

#include <span>
#include <string>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "model/tokenizer.h"
#include "services/worker/compute/sampler.h"
#include "services/worker/engine/request.h"
#include "services/worker/engine/stop_text.h"

namespace cairn::worker {

// Not thread-safe.
class Answer {
 public:
  // Both must outlive it.
  Answer(const GenerateRequest& request, const model::Tokenizer& tokenizer);

  struct Next {
    model::TokenId token = 0;
    bool ended = false;  // The model ends the answer: the token is not part of it.
    std::string text;    // Certainly text of the answer now; may be empty.
  };
  // Takes the next token from its logits. Errors: as Sampler::Sample.
  Result<Next> Take(std::span<const float> logits);
  // A stop text has come, so the answer is over.
  bool stopped() const { return stop_text_.stopped(); }
  // The answer is over. The text that was held back.
  std::string Finish();
  // The digest of all logits that Take was given. Once. REQUIRES: the request wants digests.
  Digest LogitsDigest() { return digest_.Finish(); }

 private:
  const GenerateRequest& request_;
  const model::Tokenizer& tokenizer_;
  Sampler sampler_;
  model::StreamDecoder decoder_;
  StopText stop_text_;
  Sha256 digest_;
};

}  // namespace cairn::worker
