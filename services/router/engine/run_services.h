#pragma once
// The services that the requests of a router share: for their decisions, and for their counts.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/tenants/fair_queue.h"
#include "common/tracing/tracer.h"
#include "services/router/engine/engine_prompts.h"
#include "services/router/engine/held_prefix.h"
#include "services/router/engine/prompt_encoder.h"
#include "services/router/engine/router.h"
#include "services/router/index/prefix_index.h"
#include "services/router/policy/dispatcher.h"
#include "services/router/registry/worker_registry.h"

namespace cairn::router {

// How long a caller that was refused shall wait.
inline constexpr Duration kTryAgain = std::chrono::seconds(1);

struct RouterOptions {
  std::string model_id = {};              // The name by which requests call the model.
  std::vector<std::string> aliases = {};  // Other names of it.
  uint32_t context_tokens = 0;            // Most tokens of prompt and answer: the model's limit.
  std::string tenant = "default";         // The tenant of requests that name none.
  uint64_t max_requests = 4096;           // Under way at a time. More are refused.
  uint32_t max_tries = 3;                 // Workers that may get one request.
  bool exact_index = false;               // Nodes send their events to the index.
  bool pairing = true;                    // Workers of the role prefill compute prompts for others.
  // Threads of each executor of RouterParts that make tokens at the same time; bytes of a piece of
  // that work, and a longer text is a long one; and bytes of all texts of one tenant that wait for
  // it. More than that is refused.
  size_t threads = 1;
  uint64_t piece_bytes = 16 << 10;
  uint64_t tenant_bytes = 64 << 20;
  std::map<std::string, TenantTerms> tenants = {};  // By name. Others have the defaults.
};

// Seconds of one request. Any thread, must not block.
struct RouterObservers {
  std::function<void(double)> prepared = {};     // From Generate until it was sent the first time.
  std::function<void(double)> first_token = {};  // From Generate until its first token.
  std::function<void(double)> answered = {};     // From Generate until its complete answer ended.
  // The mean between two tokens of a complete answer.
  std::function<void(double)> token = {};
};

// All of these must outlive the engine.
struct RouterParts {
  PromptEncoder* encoder = nullptr;  // nullptr: the workers are engines.
  EnginePrompts* prompts = nullptr;  // nullptr: the workers are Cairn's.
  WorkerRegistry* registry = nullptr;
  PrefixIndex* index = nullptr;
  Dispatcher* dispatcher = nullptr;
  Executor* executor = nullptr;
  // Makes tokens of long texts and decides on them, and gives way to others. nullptr: `executor`.
  Executor* long_texts = nullptr;
  const Clock* clock = nullptr;
  tracing::Tracer* tracer = nullptr;  // nullptr: nobody wants spans.
};

struct RunCounters {
  std::atomic<uint64_t> completed{0}, cancelled{0}, rejected{0}, shed{0}, unavailable{0}, broken{0},
      tries_again{0}, paired{0}, prefills_failed{0}, prompt_tokens{0}, cached_tokens{0},
      generated_tokens{0};
};

// Thread-safe. Must outlive the requests.
struct RunServices {
  RunServices(RouterOptions options, const RouterParts& parts, RouterObservers observers);
  RunServices(const RunServices&) = delete;
  RunServices& operator=(const RunServices&) = delete;

  // nullopt: the model is served, or may be.
  std::optional<GenerateError> CheckModel(const std::string& name) const;
  // No worker has room for the prompt. nullopt: one has, as far as is known.
  std::optional<GenerateError> CheckFits(const GenerateRequest& request, size_t tokens,
                                         bool exact) const;
  // Most tokens of prompt and answer that any worker takes for this model. 0: not known.
  uint32_t LongestContextOf(const std::string& model) const;
  // Tokens of the request or its JSON take more than a piece of work.
  bool IsLong(const GenerateRequest& request) const;
  // The executor of what has to be done for the prompt.
  Executor* ExecutorOf(const GenerateRequest& request) const;
  // The worker has been sent the prompt with these keys.
  void NoteSent(const RegisteredWorker& worker, PromptKeys* keys);
  // The reason why the router cannot answer anything yet; empty: a worker is ready.
  std::string Waiting() const;

  const RouterOptions options;
  const RouterParts parts;
  const RouterObservers observers;
  FairQueue queue;  // Prompts of which tokens are made.
  RunCounters counters;

 private:
  bool IsModel(const std::string& name) const;
};

}  // namespace cairn::router
