#pragma once
// The stage that a recipe may name before its codec: it decides which rows of a prompt are stored
// (docs/methods/selections.md). The plain worker knows none; methods.h says who makes them.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/tokenizer.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

struct MethodServices;

// Immutable.
class RecipeStage {
 public:
  RecipeStage() = default;
  virtual ~RecipeStage() = default;
  RecipeStage(const RecipeStage&) = delete;
  RecipeStage& operator=(const RecipeStage&) = delete;

  // The ways of prompts in a worker whose own recipe has this stage, which must outlive them. They
  // reserve the pages that they need.
  virtual std::unique_ptr<PromptWays> NewWays(const MethodServices& services) const = 0;
};

// One prompt whose queries the stages of other recipes are shown. Destroying it forgets the prompt.
// Not thread-safe: the engine's thread.
class StageWatch {
 public:
  StageWatch() = default;
  virtual ~StageWatch() = default;
  StageWatch(const StageWatch&) = delete;
  StageWatch& operator=(const StageWatch&) = delete;

  virtual void Observe(const ChunkQueries& queries) = 0;
  // When all of the prompt was computed in exact lineage, its queries from Begin on observed.
  // Pushes what the stages keep; rows are read from the sequence's pages later.
  virtual void Push(std::span<const model::TokenId> tokens,
                    std::shared_ptr<const KvSequence> sequence,
                    std::span<const double> compute_seconds, const std::string& trace) = 0;
};

// Shows prompts that are computed whole to the stages of other recipes. Not thread-safe: the
// engine's thread.
class StagePublisher {
 public:
  StagePublisher() = default;
  virtual ~StagePublisher() = default;
  StagePublisher(const StagePublisher&) = delete;
  StagePublisher& operator=(const StagePublisher&) = delete;

  // Begins a prompt, of which nothing is computed yet. `whole`: tokens of its blocks that may be
  // stored; `prefix_end`: as in GenerateRequest. Null: another prompt is watched. REQUIRES: the
  // sequence is empty, has capacity for the tokens, and outlives the watch, as this does.
  virtual std::unique_ptr<StageWatch> Begin(std::span<const model::TokenId> tokens,
                                            int64_t prefix_end, int64_t whole,
                                            const KvSequence& sequence) = 0;
};

}  // namespace cairn::worker
