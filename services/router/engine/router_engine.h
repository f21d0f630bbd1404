#pragma once
// The router without its edges: takes requests, decides, sends, tries elsewhere, hands answers on.
//
//   Generate ─► check ─► fair queue: tokenise ─► derive keys, look up, decide ─► WorkerLink
//                                       ▲                                     │
//                                       └─── failed before the first token ───┤
//   observer ◄─────────────────────────────────── tokens, end ────────────────┘
//
// A request holds a thread only while a piece of it is tokenised, and while it is decided.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cairn/common/clock.h"
#include "common/lifecycle/lifecycle.h"
#include "common/tenants/fair_queue.h"
#include "services/router/engine/router.h"
#include "services/router/engine/run_services.h"

namespace cairn::router {

// Thread-safe.
class RouterEngine final : public Router {
 public:
  using Options = RouterOptions;
  using Parts = RouterParts;
  using Observers = RouterObservers;
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
  std::string Waiting() const { return services_.Waiting(); }
  bool pairing() const { return services_.options.pairing; }
  // Prompts that wait to be made tokens of.
  FairQueue::Numbers waiting_prompts() const { return services_.queue.numbers(); }

 private:
  // Why a request finds no place at the gate.
  GenerateError Refused(Gate::Refusal refusal) const;
  std::vector<ServedModel> EngineModels();

  Gate gate_;
  RunServices services_;
};

}  // namespace cairn::router
