#pragma once
// The router without its edges: takes requests, decides, sends, tries elsewhere, hands answers on.
//
//   Generate ─► check ─► fair queue: tokenise ─► derive keys, look up, decide ─► WorkerLink
//                                       ▲                                     │
//                                       └─── failed before the first token ───┤
//   observer ◄─────────────────────────────────── tokens, end ────────────────┘
//
// A request holds a thread only while a piece of it is tokenised, and while it is decided.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/lifecycle/lifecycle.h"
#include "common/tenants/fair_queue.h"
#include "services/router/engine/engine_prompts.h"
#include "services/router/engine/prompt_encoder.h"
#include "services/router/engine/router.h"
#include "services/router/index/prefix_index.h"
#include "services/router/policy/dispatcher.h"
#include "services/router/registry/worker_registry.h"

namespace cairn::router {

// How long a caller that was refused shall wait.
inline constexpr Duration kTryAgain = std::chrono::seconds(1);

class GenerateRun;
class PickRun;
class PromptKeys;
class PromptWork;
struct PreparedPrompt;

// Thread-safe.
class RouterEngine final : public Router {
 public:
  struct Options {
    std::string model_id = {};              // The name by which requests call the model.
    std::vector<std::string> aliases = {};  // Other names of it.
    uint32_t context_tokens = 0;            // Most tokens of prompt and answer: the model's limit.
    std::string tenant = "default";         // The tenant of requests that name none.
    uint64_t max_requests = 4096;           // Under way at a time. More are refused.
    uint32_t max_tries = 3;                 // Workers that one request may be sent to.
    bool exact_index = false;               // Nodes send their events to the index.
    bool pairing = true;  // Workers of the role prefill compute prompts for others.
    // Threads of Parts::executor that make tokens at the same time; bytes of a piece of that work;
    // and bytes of all texts of one tenant that wait for it. More than that is refused.
    size_t threads = 1;
    uint64_t piece_bytes = 16 << 10;
    uint64_t tenant_bytes = 64 << 20;
    std::map<std::string, TenantTerms> tenants = {};  // By name. Others have the defaults.
  };
  // Seconds of one request. Any thread, must not block.
  struct Observers {
    std::function<void(double)> prepared = {};  // From Generate until it was sent the first time.
    std::function<void(double)> first_token = {};  // From Generate until its first token.
  };
  // All of these must outlive the engine.
  struct Parts {
    PromptEncoder* encoder = nullptr;  // nullptr: the workers are engines.
    EnginePrompts* prompts = nullptr;  // nullptr: the workers are Cairn's.
    WorkerRegistry* registry = nullptr;
    PrefixIndex* index = nullptr;
    Dispatcher* dispatcher = nullptr;
    Executor* executor = nullptr;
    const Clock* clock = nullptr;
  };
  struct Numbers {
    uint64_t completed = 0;
    uint64_t cancelled = 0;
    uint64_t rejected = 0;     // Something was wrong with them.
    uint64_t shed = 0;         // Or refused because of too many under way.
    uint64_t unavailable = 0;  // No worker could take them.
    uint64_t broken = 0;       // Their worker failed after the first token.
    uint64_t active = 0;
    uint64_t tries_again = 0;  // Requests that went to another worker.
    uint64_t paired = 0;       // Times that a worker was asked to compute a prompt for another one.
    uint64_t prefills_failed = 0;  // The pairings in which it failed.
    uint64_t prompt_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t generated_tokens = 0;
  };

  RouterEngine(Options options, const Parts& parts, Observers observers);
  // REQUIRES: Shutdown has returned true, or no request was ever taken.
  ~RouterEngine() override = default;

  std::unique_ptr<GenerateCall> Generate(GenerateRequest request,
                                         std::shared_ptr<GenerateObserver> observer) override;
  void PickWorker(GenerateRequest request, PickOnceDone done) override;
  void PickAndFollow(PickAsk ask, PickDone done) override;
  std::variant<std::vector<PromptHolder>, GenerateError> Holders(
      const HoldersQuery& query) override;
  std::vector<ServedModel> Models() override;

  // Refuses new requests from now on. True: those under way have ended before the deadline, which
  // is on the steady clock.
  bool Drain(TimePoint deadline);
  Numbers numbers() const;
  // The reason why it cannot answer anything yet; empty: a worker is ready.
  std::string Waiting() const;
  bool pairing() const { return options_.pairing; }
  // Prompts that wait to be made tokens of.
  FairQueue::Numbers waiting_prompts() const { return queue_.numbers(); }

 private:
  friend class GenerateRun;
  friend class PickRun;
  friend class PromptWork;
  struct Counters {
    std::atomic<uint64_t> completed{0}, cancelled{0}, rejected{0}, shed{0}, unavailable{0},
        broken{0}, tries_again{0}, paired{0}, prefills_failed{0}, prompt_tokens{0},
        cached_tokens{0}, generated_tokens{0};
  };
  // Errors of a request that are found before anything is made of it.
  std::optional<GenerateError> CheckBefore(const GenerateRequest& request) const;
  // Checks, and makes tokens between those of other requests, or at once if that costs nothing.
  // `done` as PromptWork's; it may be called before this has returned.
  void Prepare(GenerateRequest* request, std::function<bool()> gone,
               std::function<void(std::variant<PreparedPrompt, GenerateError>, bool)> done);
  // Most tokens of prompt and answer that any worker takes for this model. 0: not known.
  uint32_t LongestContext(const std::string& model) const;
  // No worker has room for the prompt. nullopt: one has, as far as is known.
  std::optional<GenerateError> CheckFits(const GenerateRequest& request, size_t tokens,
                                         bool exact) const;
  // The arguments of a pick, beyond the request: as in PickAsk.
  struct PickHow {
    bool followed = false;
    const std::function<bool(const std::string&)>* may = nullptr;  // nullptr: all may.
  };
  struct Picked {
    Pick pick;
    RegisteredWorker worker;
    uint32_t held_tokens = 0;  // Tokens of the prompt that the worker holds.
    uint64_t ticket = 0;       // The dispatcher's ticket, if it is followed.
  };
  // Decides where the one request with these keys goes, once.
  std::variant<Picked, GenerateError> Decide(const GenerateRequest& request, size_t tokens,
                                             bool exact, PromptKeys* keys, const PickHow& how);
  // The worker has been sent the prompt with these keys.
  void NoteSent(const RegisteredWorker& worker, PromptKeys* keys);
  // Why a request finds no place at the gate.
  GenerateError Refused(Gate::Refusal refusal) const;
  // nullopt: it is served, or may be.
  std::optional<GenerateError> CheckModel(const std::string& name) const;
  bool IsModel(const std::string& name) const;
  std::vector<ServedModel> EngineModels();

  const Options options_;
  const Parts parts_;
  const Observers observers_;
  Gate gate_;
  FairQueue queue_;  // Prompts of which tokens are made.
  Counters counters_;
};

}  // namespace cairn::router
