#include "services/worker/engine/answer.h"

namespace cairn::worker {

Answer::Answer(const GenerateRequest& request, const model::Tokenizer& tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      sampler_(request.sampling),
      decoder_(tokenizer),
      stop_text_(request.stop) {}

Result<Answer::Next> Answer::Take(std::span<const float> logits) {
  if (request_.want_logits_digest) digest_.Update(std::as_bytes(logits));
  Next next;
  CAIRN_ASSIGN_OR_RETURN(next.token, sampler_.Sample(logits));
  next.ended = !request_.ignore_eos && tokenizer_.IsEndOfGeneration(next.token);
  if (!next.ended) next.text = stop_text_.Add(decoder_.Add(next.token));
  return next;
}

std::string Answer::Finish() {
  std::string text;
  if (!stop_text_.stopped()) text = stop_text_.Add(decoder_.Finish());
  return text + stop_text_.Finish();
}

}  // namespace cairn::worker
