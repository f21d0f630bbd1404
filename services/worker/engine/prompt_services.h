#pragma once
// What all prompts of an engine share.

#include <cstdint>
#include <span>

#include "cairn/common/clock.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/prefill.h"
#include "services/worker/engine/published_namespaces.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/engine/shared_blocks.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread. What it refers to must outlive the prompts.
struct PromptServices {
  Transformer& transformer;
  const Clock& clock;
  // All null without a cache node.
  PrefixSession* session = nullptr;
  PushQueue* push = nullptr;
  PushQueue* urgent = nullptr;  // For blocks that another worker waits for.
  // Where computed blocks of exact lineage are pushed to in addition to the session's namespace.
  std::span<const PublishedNamespace> published = {};
  // Pushes to those of `published` that have a stage. Null: none has.
  StagePublisher* stages = nullptr;
  Prefiller prefiller{transformer, clock};
  BlockClaims claims = {};

  int64_t block_tokens() const { return transformer.kv_layout().block_tokens; }
  // The cache stores KV in another form than it was computed in.
  bool lossy() const { return session != nullptr && session->codec().lossy(); }
};

}  // namespace cairn::worker
