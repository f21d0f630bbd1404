#pragma once
// Makes what all requests of an engine share, out of the engine's parts.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/concurrency/executor.h"
#include "services/worker/engine/engine_cache.h"
#include "services/worker/engine/engine_parts.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/engine/request_run.h"
#include "services/worker/engine/spilled_prompt.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread.
class RequestServices {
 public:
  // The calls of requests to their engine.
  struct Hooks {
    const std::atomic<bool>& cancel_all;
    Wakeup& wakeup;                                       // Notified of work in the background.
    std::function<Status(KvSequence&, int64_t)> reserve;  // As in RequestParts.
    std::function<bool()> company;                        // The same.
    std::function<int64_t()> spare_pages;                 // The same.
    std::function<void(const SpillStats&)> spilled;       // Counts what a spilt prompt came to.
  };
  // `cache` and `executor`: null without a cache node. All must outlive it.
  RequestServices(const EngineParts& parts, EngineCache* cache, Executor* executor, Hooks hooks);
  RequestServices(const RequestServices&) = delete;
  RequestServices& operator=(const RequestServices&) = delete;

  const RequestParts& parts() const { return *request_parts_; }
  PromptKv& prompt_kv() { return prompt_kv_; }
  const PromptKv& prompt_kv() const { return prompt_kv_; }
  // The recipe has a stage, which makes the ways of prompts.
  bool staged() const { return staged_prompts_ != nullptr; }

 private:
  // Why prompts that do not fit into the pool cannot be spilt. Empty: they can.
  std::string WhyNoSpill(const EngineParts& parts, const EngineCache* cache) const;

  PromptKv prompt_kv_;
  std::unique_ptr<PromptWays> staged_prompts_;  // Null: the recipe has no stage.
  // Null: prompts that were longer than the context go the usual way.
  std::unique_ptr<PromptWays> turned_prompts_;
  PushTurn spill_turn_;
  std::optional<SpillServices> spill_;  // If the recipe keeps every bit.
  std::optional<RequestParts> request_parts_;
};

}  // namespace cairn::worker
