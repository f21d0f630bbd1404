#pragma once
// Selects rows of prompts for namespaces that a worker publishes to beside its own, whose KV stays
// whole: one prefill serves readers of several selections.

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

  // One prompt whose queries the selections are shown. Destroying it forgets the prompt.
  class Watch;
  // Begins a prompt, of which nothing is computed yet. Null: another one is watched. REQUIRES: the
  // sequence is empty, has capacity for the tokens, and outlives the watch, as this does.
  std::unique_ptr<Watch> Begin(std::span<const TokenId> tokens, int64_t prefix_end, int64_t whole,
                               const KvSequence& sequence);

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
  bool watching_ = false;
};

// Not thread-safe.
class SelectionPublisher::Watch {
 public:
  Watch(SelectionPublisher& publisher, std::vector<Segment> segments);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void Observe(const ChunkQueries& queries);
  // When all of the prompt was computed in exact lineage, its queries from Begin on observed:
  // selects, and queues the rows; they are read from the sequence's pages later.
  void Push(std::span<const TokenId> tokens, std::shared_ptr<const KvSequence> sequence,
            std::span<const double> compute_seconds, const std::string& trace);

 private:
  SelectionPublisher& publisher_;
  const std::vector<Segment> segments_;
};

}  // namespace cairn::worker
