#include "services/router/engine/pick_run.h"

#include <atomic>
#include <utility>

#include "services/router/engine/check_request.h"
#include "services/router/engine/held_prefix.h"

namespace cairn::router {
namespace {

// Of a request that its caller has sent to a worker.
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
    generated_ += tokens;
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
    if (auto error = engine_->CheckModel(ask_.request.model)) return Fail(*std::move(error));
    return Decide();
  }
  EnginePrompts* const prompts = engine_->parts_.prompts;
  if (prompts == nullptr) {
    if (auto error = engine_->Prepare(ask_.request, &tokens_)) return Fail(*std::move(error));
    return Decide();
  }
  if (auto error = engine_->PrepareForEngines(ask_.request)) return Fail(*std::move(error));
  auto prompt = prompts->Read(ask_.request, [self = shared_from_this()](EnginePrompt later) {
    self->tokens_ = std::move(later.tokens);
    self->space_ = later.space;
    // What asks engines must not do more than that.
    const Status posted = self->engine_->parts_.executor->Post([self] { self->Decide(); });
    if (!posted.ok()) self->Refuse("too many requests wait");
  });
  if (!prompt) return;
  tokens_ = std::move(prompt->tokens);
  space_ = prompt->space;
  Decide();
}

void PickRun::Refuse(const char* why) {
  Fail({.status = Errorf(StatusCode::kResourceExhausted, "{}", why), .retry_after = kTryAgain});
}

void PickRun::Fail(GenerateError error) {
  // Whoever waits for the last request to end may go on when the caller has its answer.
  const Gate::Pass pass = std::move(pass_);
  done_(std::move(error));
}

void PickRun::Decide() {
  // The tokens stand for the prompt from now on.
  ask_.request.prompt = std::string();
  ask_.request.raw.reset();
  if (!ask_.request.share.Resize(TokenBytes(tokens_.size()))) {
    return Fail({.status = Errorf(StatusCode::kUnavailable,
                                  "memory of the bodies of requests: no room for {} tokens of "
                                  "this one",
                                  tokens_.size()),
                 .retry_after = kTryAgain});
  }
  PromptKeys keys(tokens_, space_);
  auto picked = engine_->Decide(ask_.request, static_cast<uint32_t>(tokens_.size()), &keys,
                                {.followed = ask_.followed, .may = &ask_.may});
  if (auto* error = std::get_if<GenerateError>(&picked)) return Fail(std::move(*error));
  auto& found = std::get<RouterEngine::Picked>(picked);
  if (!ask_.followed) {
    const Gate::Pass pass = std::move(pass_);
    return done_(FollowedPick{.pick = std::move(found.pick), .lease = nullptr});
  }
  engine_->NoteSent(found.worker, &keys);
  auto foreign = found.worker.link->FollowForeign({.prompt_tokens = found.pick.prompt_tokens,
                                                   .held_tokens = found.held_tokens,
                                                   .stream = ask_.sees_tokens});
  auto lease = std::make_unique<Lease>(engine_->parts_.dispatcher, found.ticket, std::move(foreign),
                                       std::move(pass_));
  done_(FollowedPick{.pick = std::move(found.pick), .lease = std::move(lease)});
}

}  // namespace cairn::router
