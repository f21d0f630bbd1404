#include "services/router/engine/prefill_half.h"

#include <utility>

namespace cairn::router {

PrefillHalf::PrefillHalf(Parts parts)
    : parts_(std::move(parts)), cached_tokens_(parts_.decision.cached_tokens) {}

void PrefillHalf::Begin(WorkerLink* link, WorkerRequest request) {
  request.prefill_only = true;
  request.await_prefill = Duration(0);
  std::shared_ptr<WorkerCall> call = link->Generate(request, shared_from_this());
  bool cancel = false;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    call_ = call;
    cancel = cancelled_;
  }
  if (cancel) call->Cancel();
}

void PrefillHalf::Cancel() {
  std::shared_ptr<WorkerCall> call;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    call = call_;
  }
  if (call != nullptr) call->Cancel();
}

void PrefillHalf::OnAnnounced() { Tell(/*announced=*/true); }

// A worker has none for a prompt alone. One that lies harms nobody.
void PrefillHalf::OnToken(model::TokenId /*id*/, std::string_view /*text*/) {}

void PrefillHalf::OnDone(const WorkerAnswer& answer) {
  const bool whole = answer.finish_reason == "prefill";
  if (whole) cached_tokens_ = answer.fetched_tokens + answer.shared_tokens;
  // The request's deadline is no failure of the worker.
  End(/*failed=*/!whole && answer.finish_reason != "deadline");
}

void PrefillHalf::OnError(const Status& /*status*/) { End(/*failed=*/true); }

void PrefillHalf::Tell(bool announced) {
  // It holds what holds this object.
  if (const Begun begun = std::exchange(parts_.begun, nullptr)) begun(announced);
}

void PrefillHalf::End(bool failed) {
  bool cancelled = false;
  {
    MutexLock lock(mu_);
    ended_ = true;
    call_.reset();
    cancelled = cancelled_;
  }
  if (failed && !cancelled) ++*parts_.failures;
  parts_.dispatcher->OnEnd(parts_.decision.ticket, {});
  Tell(/*announced=*/false);
  parts_.pass.reset();
}

}  // namespace cairn::router
