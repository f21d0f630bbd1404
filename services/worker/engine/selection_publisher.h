#pragma once
// Selects rows of prompts for namespaces that a worker publishes to in addition to its own, whose
// KV stays whole: one prefill serves readers of several selections.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/worker/engine/segment_selection.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

// Where a prompt's shared segment ends, in tokens; 0: it has none. `whole`: tokens of the prompt's
// blocks that may be in it; `prefix_end`: as in GenerateRequest.
int64_t SharedSegmentEnd(const selections::Selection& selection, int64_t prefix_end, int64_t whole,
                         int64_t block_tokens);

// Not thread-safe.
class SelectionPublisher {
 public:
  // All must outlive it. Namespaces without a selection are passed over.
  SelectionPublisher(Transformer& transformer, const Model& model, PushQueue& push,
                     std::span<const PublishedNamespace> published);

  // Begins a prompt, of which nothing is computed yet. REQUIRES: the sequence is empty, has
  // capacity for the tokens, and is not destroyed before Push or Drop.
  void Begin(std::span<const TokenId> tokens, int64_t prefix_end, int64_t whole,
             const KvSequence& sequence);
  void Observe(const ChunkQueries& queries);
  // When all of the prompt was computed in exact lineage, its queries from Begin on observed:
  // selects, and queues the rows; they are read from the sequence's pages later.
  void Push(std::span<const TokenId> tokens, std::shared_ptr<const KvSequence> sequence,
            std::span<const double> compute_seconds, const std::string& trace);
  // Forgets the prompt.
  void Drop() { segments_.clear(); }

 private:
  struct Segment {
    const PublishedNamespace* target;
    int64_t end;  // Tokens.
    std::unique_ptr<SegmentSelection> selection;
  };

  Transformer& transformer_;
  const SelectionModel model_;
  PushQueue& push_;
  std::vector<const PublishedNamespace*> targets_;
  std::vector<Segment> segments_;  // The segments of the prompt under way.
};

}  // namespace cairn::worker
