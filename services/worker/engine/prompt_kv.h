#pragma once
// Gets the KV of prompts: fetches what the cache node has, computes the rest, queues what was
// computed for the push.
//
// Exactness. The forward pass gives the same bytes wherever a prompt is cut at a block boundary,
// and fetched blocks are bytes of the same forward pass, so the KV and the logits do not depend on
// how much was fetched. A fetch that breaks off while the rest is already computed on it discards
// that.

#include <optional>
#include <span>
#include <utility>

#include "cairn/common/status.h"
#include "services/worker/engine/prompt_services.h"
#include "services/worker/engine/prompt_way.h"

namespace cairn::worker {

// Owns what all prompts share. PromptRun takes one prompt through it. Not thread-safe.
class PromptKv {
 public:
  explicit PromptKv(PromptServices services) : services_(std::move(services)) {}
  PromptKv(const PromptKv&) = delete;
  PromptKv& operator=(const PromptKv&) = delete;

  PromptServices& services() { return services_; }

  // Does all steps of a PromptRun that is alone.
  PromptReport Compute(const PromptRequest& request);

  // The cache stores KV in another form than it was computed in.
  bool lossy() const { return services_.lossy(); }
  // The key of the last of these tokens' blocks, all of them whole, of exact lineage. nullopt: no
  // cache node.
  std::optional<BlockKey> ContextKey(std::span<const model::TokenId> tokens) const;
  // The speed of the prompts so far; 0: not known.
  double prefill_tokens_per_second() const { return services_.prefiller.tokens_per_second(); }

  // As Prefiller::CheckLoans.
  Status CheckLoans(std::span<const model::TokenId> prompt, KvSequence& sequence) {
    return services_.prefiller.CheckLoans(prompt, sequence);
  }

 private:
  PromptServices services_;
};

}  // namespace cairn::worker
