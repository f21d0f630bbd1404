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
    if (auto error = engine_->CheckModel(ask_.request.model)) return Fail(*std::move(error));
    return Decide();
  }
  engine_->Prepare(&ask_.request, nullptr,
                   [self = shared_from_this()](std::variant<PreparedPrompt, GenerateError> prompt,
                                               bool elsewhere) {
                     if (auto* error = std::get_if<GenerateError>(&prompt)) {
                       return self->Fail(std::move(*error));
                     }
                     self->prompt_ = std::get<PreparedPrompt>(std::move(prompt));
                     if (!elsewhere) return self->Decide();
                     // Calls that ask engines must not do more than that.
                     const Status posted =
                         self->engine_->parts_.executor->Post([self] { self->Decide(); });
                     if (!posted.ok()) self->Refuse("too many requests wait");
                   });
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
  const std::vector<worker::TokenId>& tokens = prompt_.tokens;
  if (!ask_.request.share.Resize(TokenBytes(tokens.size()))) {
    return Fail(NoRoomFor(fmt::format("its {} tokens", tokens.size())));
  }
  PromptKeys keys(tokens, prompt_.space);
  auto picked = engine_->Decide(ask_.request, tokens.size(), prompt_.exact, &keys,
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
