#pragma once
// One request on its way: prepared, sent to a worker, sent to another one if that fails before the
// first token, ended. Before it is sent to a worker, another one may compute its prompt.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/lifecycle/lifecycle.h"
#include "services/router/engine/held_prefix.h"
#include "services/router/engine/prefill_half.h"
#include "services/router/engine/prompt_work.h"
#include "services/router/engine/run_services.h"

namespace cairn::router {

// Lives until its end: what works for it holds it. Begin and the worker's answers come one after
// the other; Cancel comes from any thread.
class GenerateRun final : public std::enable_shared_from_this<GenerateRun> {
 public:
  GenerateRun(RunServices& services, GenerateRequest request,
              std::shared_ptr<GenerateObserver> observer, Gate::Pass pass);

  // Any thread. Its caller holds it.
  void Begin();
  // Instead of Begin: it cannot be prepared.
  void Refuse(const Status& status);
  void Cancel();

 private:
  class Attempt;
  void OnPrompt(std::variant<PreparedPrompt, GenerateError> prompt, bool elsewhere);
  // The tokens stand for the prompt from now on. False: there is no room for them, and the run has
  // ended.
  bool TakeTokens(PreparedPrompt prompt);
  // The request goes nowhere else any more, and its bytes may be many.
  void LetGoOfRequest();
  void TryNext();
  Decision Decide(const std::vector<RegisteredWorker>& workers);
  // Another worker computes the prompt for `worker`, which is asked when that is announced.
  void SendBoth(const RegisteredWorker& prefill, const RegisteredWorker& worker,
                const Decision::Prefill& decision);
  // `held_tokens`: of the prompt, that it is believed to hold. `await`: how long it may wait for
  // what another one has announced.
  void Send(const RegisteredWorker& worker, uint32_t held_tokens, Duration await);
  WorkerRequest RequestFor(const WorkerInfo& info) const;
  // A link, or what makes tokens, may answer on a thread that must not do more than that.
  void OnExecutor(std::function<void()> work);
  void FirstToken();
  void OnToken(model::TokenId id, std::string_view text);
  void OnRawHead(const RawHead& head);
  void OnRawBytes(std::string_view bytes, uint32_t tokens);
  void OnRefused(const Status& status, const RawAnswer& answer);
  // No other engine can answer: the caller gets what the last one said.
  void PassRefusal();
  void OnDone(const WorkerAnswer& answer);
  void OnError(const Status& status);
  void OnUnreached(const Status& status);
  void EndTicket(const RequestEnd& end);
  // The other worker's half is done, or not needed any more.
  void EndPrefill();
  // No worker can take it.
  void FailUntaken(const Decision& decision);
  // Tells the times of a complete answer.
  void ObserveAnswer();
  // `error`: empty if it went well. `http_status`: of GenerateObserver.
  void EndSpan(const std::string& error, int http_status, const GenerateSummary& summary);
  // The last thing that happens.
  void Fail(const GenerateError& error);
  bool cancelled() {
    MutexLock lock(mu_);
    return cancelled_;
  }

  RunServices& services_;
  GenerateRequest request_;
  const TimePoint begin_;
  std::optional<tracing::Place> place_;  // nullopt: no span is wanted.
  // These belong to whoever drives the request.
  std::shared_ptr<GenerateObserver> observer_;
  std::shared_ptr<const Gate::Pass> pass_;
  struct Prompt {
    std::shared_ptr<const std::vector<model::TokenId>> tokens;
    bool exact = true;     // False: text stands for the tokens.
    uint32_t counted = 0;  // Tokens, even when they are let go. 0: not known.
    std::unique_ptr<PromptKeys> keys;
  };
  Prompt prompt_;
  std::vector<std::string> tried_;  // Addresses of workers.
  size_t unreached_ = 0;            // Those of them that got nothing of the request.
  std::string worker_;              // The address of the present one.
  std::string prefill_worker_;      // Computes the prompt for it. Empty: none.
  bool accepted_ = false;           // A worker was picked once.
  bool prefill_failed_ = false;     // It is not tried again.
  // Tokens of the prompt that the worker for it did not compute for this request. nullopt: there is
  // none.
  std::optional<uint32_t> prefill_cached_;
  uint64_t ticket_ = 0;  // The ticket of the present worker. 0: none.
  Status last_error_;
  struct Answer {
    std::optional<RawAnswer> refusal;  // The last one of an engine.
    int raw_status = 0;                // The status that is relayed. 0: none has begun.
    uint32_t generated = 0;            // Tokens.
    std::optional<TimePoint> first_token;
    size_t text_bytes = 0;
  };
  Answer answer_;

  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  size_t attempts_ ABSL_GUARDED_BY(mu_) = 0;  // Attempts that have begun; call_ is the last one's.
  std::shared_ptr<WorkerCall> call_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<PrefillHalf> prefill_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
