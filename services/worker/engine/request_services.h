#pragma once
// Makes what all requests of an engine share, out of the engine's parts.

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "common/concurrency/executor.h"
#include "services/worker/engine/engine_cache.h"
#include "services/worker/engine/engine_parts.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/request_run.h"
#include "services/worker/engine/selected_prompt.h"
#include "services/worker/engine/spilled_prompt.h"
#include "services/worker/engine/turned_prompt.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread.
class RequestServices {
 public:
  // What requests ask of their engine.
  struct Hooks {
    const std::atomic<bool>& cancel_all;
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
  // The recipe selects tokens.
  bool selects() const { return selected_prompts_.has_value(); }

 private:
  // Why prompts that do not fit into the pool cannot be spilt. Empty: they can.
  std::string WhyNoSpill(const EngineParts& parts, const EngineCache* cache) const;

  PromptKv prompt_kv_;
  std::optional<SelectedPrompts> selected_prompts_;
  std::optional<SpillServices> spill_;  // If the recipe keeps every bit.
  std::optional<TurnServices> turn_;    // The same.
  std::optional<RequestParts> request_parts_;
};

}  // namespace cairn::worker
