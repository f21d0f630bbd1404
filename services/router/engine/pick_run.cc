#include "services/router/engine/pick_run.h"

#include <atomic>
#include <utility>

#include "services/router/engine/check_request.h"
#include "services/router/engine/held_prefix.h"

namespace cairn::router {
namespace {

// The lease of a request that its caller has sent to a worker.
class Lease final : public PickLease {
 public:
  // `foreign`: nullptr, the worker tells its load itself.
  Lease(Dispatcher* dispatcher, uint64_t ticket, std::unique_ptr<ForeignCall> foreign,
        Gate::Pass pass)
      : dispatcher_(dispatcher),
        ticket_(ticket),
        pass_(std::move(pass)),
        foreign_(std::move(foreign)) {}
  ~Lease() override {
    dispatcher_->OnEnd(ticket_, {.generated_tokens = generated_, .complete = completed_});
  }
  void Generated(uint32_t tokens) override {
    if (tokens > 0 && generated_.fetch_add(tokens) == 0) dispatcher_->OnComputed(ticket_);
    if (foreign_ != nullptr) foreign_->Generated(tokens);
  }
  void Completed() override { completed_ = true; }

 private:
  Dispatcher* const dispatcher_;
  const uint64_t ticket_;
  const Gate::Pass pass_;  // Goes last: whoever waits for it may end what the others need.
  const std::unique_ptr<ForeignCall> foreign_;
  std::atomic<uint32_t> generated_{0};
  std::atomic<bool> completed_{false};
};

}  // namespace

void PickRun::Begin() {
  if (!ask_.has_prompt) {
    if (auto error = services_.CheckModel(ask_.request.model)) return Fail(*std::move(error));
    return Decide();
  }
  Prepare(services_, &ask_.request, nullptr,
          [self = shared_from_this()](std::variant<PreparedPrompt, GenerateError> prompt,
                                      bool elsewhere) {
            if (auto* error = std::get_if<GenerateError>(&prompt)) {
              return self->Fail(std::move(*error));
            }
            self->prompt_ = std::get<PreparedPrompt>(std::move(prompt));
            if (!elsewhere) return self->Decide();
            // Calls that ask engines must not do more than that.
            const Status posted =
                self->services_.ExecutorOf(self->ask_.request)->Post([self] { self->Decide(); });
            if (!posted.ok()) self->Refuse(Annotate(posted, "too many requests wait"));
          });
}

void PickRun::Refuse(const Status& why) { Fail({.status = why, .retry_after = kTryAgain}); }

void PickRun::Fail(GenerateError error) {
  // Whoever waits for the last request to end may go on when the caller has its answer.
  const Gate::Pass pass = std::move(pass_);
  done_(std::move(error));
}

std::variant<PickRun::Picked, GenerateError> PickRun::Choose(PromptKeys* keys) {
  const GenerateRequest& request = ask_.request;
  const RouterParts& parts = services_.parts;
  const size_t tokens = prompt_.tokens.size();
  const std::vector<RegisteredWorker> workers = parts.registry->Workers();
  const uint32_t prompt_tokens = CountedTokens(workers, request.model, tokens);
  Ask ask;
  ask.prompt_tokens = prompt_tokens;
  ask.max_tokens = request.max_tokens;
  ask.priority = request.priority;
  ask.tenant = request.tenant;
  ask.followed = ask_.followed;
  // A caller that sends the request itself sends it to one worker.
  const bool pairing = services_.options.pairing && !ask_.followed;
  ask.offers =
      MakeOffers(workers, {.model = request.model, .exact_tokens = prompt_.exact ? tokens : 0},
                 pairing, keys, parts.index);
  for (Offer& offer : ask.offers) {
    if (!ask_.may || ask_.may(offer.worker)) continue;
    offer.usable = false;
    offer.reason = "the caller does not want it";
  }
  Decision decision = parts.dispatcher->Decide(ask);
  GenerateError error;
  if (decision.kind == Decision::Kind::kShed) {
    error.status =
        Errorf(StatusCode::kResourceExhausted, "it would wait {:.1f}s, try again in {:.0f}s",
               decision.wait_seconds, Seconds(decision.retry_after));
    error.retry_after = decision.retry_after;
    return error;
  }
  if (decision.kind == Decision::Kind::kNoWorker) {
    const std::string waiting = services_.Waiting();
    error.status = Errorf(StatusCode::kUnavailable, "no worker can answer: {}",
                          waiting.empty() ? "the caller wants none that is ready" : waiting);
    error.retry_after = kTryAgain;
    return error;
  }
  Picked picked;
  picked.worker = workers[decision.picked];
  picked.held_tokens = decision.candidates[decision.picked].held_tokens;
  picked.ticket = decision.ticket;
  picked.pick.worker = picked.worker.address;
  if (decision.prefill) {
    picked.pick.prefill_worker = workers[decision.prefill->worker].address;
  }
  picked.pick.policy = std::string(parts.dispatcher->policy());
  picked.pick.prompt_tokens = prompt_tokens;
  picked.pick.candidates = std::move(decision.candidates);
  return picked;
}

void PickRun::Decide() {
  // The tokens stand for the prompt from now on.
  ask_.request.prompt = std::string();
  ask_.request.raw.reset();
  const std::vector<model::TokenId>& tokens = prompt_.tokens;
  if (const Status room = ask_.request.share.Charge(TokenBytes(tokens.size())); !room.ok()) {
    return Fail(NoRoomFor(fmt::format("got {} tokens", tokens.size()), room));
  }
  PromptKeys keys(tokens, prompt_.space);
  auto picked = Choose(&keys);
  if (auto* error = std::get_if<GenerateError>(&picked)) return Fail(std::move(*error));
  auto& found = std::get<Picked>(picked);
  if (!ask_.followed) {
    const Gate::Pass pass = std::move(pass_);
    return done_(FollowedPick{.pick = std::move(found.pick), .lease = nullptr});
  }
  services_.NoteSent(found.worker, &keys);
  auto foreign = found.worker.link->FollowForeign({.prompt_tokens = found.pick.prompt_tokens,
                                                   .held_tokens = found.held_tokens,
                                                   .stream = ask_.sees_tokens});
  auto lease = std::make_unique<Lease>(services_.parts.dispatcher, found.ticket, std::move(foreign),
                                       std::move(pass_));
  done_(FollowedPick{.pick = std::move(found.pick), .lease = std::move(lease)});
}

}  // namespace cairn::router
