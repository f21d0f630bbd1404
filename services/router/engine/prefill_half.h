#pragma once
// The first half of a request that two workers share: one computes the prompt for the other, which
// answers (docs/operate/disaggregation.md).
//
//   Begin ─► sent ──► announced ──► ended
//              └───────────────────►┘
//
// `begun` is called at the first of `announced` and `ended`: then the other worker may be asked.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/concurrency/mutex.h"
#include "common/lifecycle/lifecycle.h"
#include "services/router/policy/dispatcher.h"
#include "services/router/registry/worker_link.h"

namespace cairn::router {

// Lives until its worker's call has ended. The worker's link drives it. Cancel and the numbers are
// for any thread.
class PrefillHalf final : public WorkerAnswerObserver,
                          public std::enable_shared_from_this<PrefillHalf> {
 public:
  // True: the prompt is announced, so that another worker may wait for it. False: it will not be.
  using Begun = std::function<void(bool announced)>;
  struct Parts {
    Dispatcher* dispatcher = nullptr;  // Must live as long as `pass`.
    Decision::Prefill decision = {};
    std::atomic<uint64_t>* failures = nullptr;    // As the dispatcher.
    std::shared_ptr<const Gate::Pass> pass = {};  // Is let go at the end.
    // Called once, by the link. Must not block, and is let go then.
    Begun begun = {};
  };
  explicit PrefillHalf(Parts parts);

  // Sends the prompt of `request`. Call it once.
  void Begin(WorkerLink* link, WorkerRequest request);
  // The worker frees what it holds for the prompt within a step. Blocks that it has pushed stay.
  void Cancel();

  // The prompt's tokens that the worker did not compute for this request: as it said, or as was
  // expected before it has said anything.
  uint32_t cached_tokens() const { return cached_tokens_; }

  void OnAnnounced() override;
  void OnToken(model::TokenId id, std::string_view text) override;
  void OnDone(const WorkerAnswer& answer) override;
  void OnError(const Status& status) override;

 private:
  void Tell(bool announced);
  void End(bool failed);

  // These belong to the link.
  Parts parts_;
  std::atomic<uint32_t> cached_tokens_;
  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<WorkerCall> call_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
