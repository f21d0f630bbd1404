#pragma once
// Selects rows of prompts for namespaces that a worker publishes to in addition to its own, whose
// KV stays whole: one prefill serves readers of several selections.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/worker/engine/published_namespaces.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/methods/selections/segment_selection.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// Where a prompt's shared segment ends, in tokens; 0: it has none. `whole`: tokens of the prompt's
// blocks that may be in it; `prefix_end`: as in GenerateRequest.
int64_t SharedSegmentEnd(const selections::Selection& selection, int64_t prefix_end, int64_t whole,
                         int64_t block_tokens);

// As StagePublisher. Not thread-safe.
class SelectionPublisher final : public StagePublisher {
 public:
  // All must outlive it. Namespaces without a stage are passed over; every stage is a
  // SelectionStage.
  SelectionPublisher(Transformer& transformer, const model::Model& model, PushQueue& push,
                     std::span<const PublishedNamespace> published);

  std::unique_ptr<StageWatch> Begin(std::span<const model::TokenId> tokens, int64_t prefix_end,
                                    int64_t whole, const KvSequence& sequence) override;

 private:
  class Watch;
  struct Target {
    const PublishedNamespace& published;
    const selections::Selection& selection;
  };
  struct Segment {
    const Target* target;
    int64_t end;  // Tokens.
    std::unique_ptr<SegmentSelection> selection;
  };

  Transformer& transformer_;
  const SelectionModel model_;
  PushQueue& push_;
  std::vector<Target> targets_;
  bool watching_ = false;
};

}  // namespace cairn::worker
