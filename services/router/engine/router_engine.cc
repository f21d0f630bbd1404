#include "services/router/engine/router_engine.h"

#include <algorithm>
#include <utility>

#include "services/router/engine/check_request.h"
#include "services/router/engine/generate_run.h"
#include "services/router/engine/held_prefix.h"
#include "services/router/engine/prompt_holders.h"

namespace cairn::router {
namespace {

constexpr Duration kTryAgain = std::chrono::seconds(1);

// Cancels when its caller lets go of it.
class CallHandle final : public GenerateCall {
 public:
  explicit CallHandle(std::shared_ptr<GenerateRun> run) : run_(std::move(run)) {}
  ~CallHandle() override { run_->Cancel(); }
  void Cancel() override { run_->Cancel(); }

 private:
  const std::shared_ptr<GenerateRun> run_;
};

// Of a call that ended before it began.
class EndedCall final : public GenerateCall {
 public:
  void Cancel() override {}
};

// Of a request that its caller has sent to a worker.
class TicketLease final : public PickLease {
 public:
  TicketLease(Dispatcher* dispatcher, uint64_t ticket, Gate::Pass pass)
      : dispatcher_(dispatcher), ticket_(ticket), pass_(std::move(pass)) {}
  ~TicketLease() override {
    dispatcher_->OnEnd(ticket_, {.generated_tokens = generated_, .complete = completed_});
  }
  void Generated(uint32_t tokens) override { generated_ += tokens; }
  void Completed() override { completed_ = true; }

 private:
  Dispatcher* const dispatcher_;
  const uint64_t ticket_;
  const Gate::Pass pass_;  // Goes last: whoever waits for it may end the dispatcher.
  std::atomic<uint32_t> generated_{0};
  std::atomic<bool> completed_{false};
};

const char* FieldOfPrompt(const GenerateRequest& request) {
  return std::holds_alternative<std::vector<worker::ChatMessage>>(request.prompt) ? "messages"
                                                                                  : "prompt";
}

}  // namespace

RouterEngine::RouterEngine(Options options, const Parts& parts, Observers observers)
    : options_(std::move(options)),
      parts_(parts),
      observers_(std::move(observers)),
      gate_(options_.max_requests) {}

std::unique_ptr<GenerateCall> RouterEngine::Generate(GenerateRequest request,
                                                     std::shared_ptr<GenerateObserver> observer) {
  Gate::Refusal refusal = Gate::Refusal::kNone;
  Gate::Pass pass = gate_.Enter(&refusal);
  if (!pass) {
    ++(refusal == Gate::Refusal::kClosed ? counters_.unavailable : counters_.shed);
    observer->OnError(Refused(refusal));
    return std::make_unique<EndedCall>();
  }
  if (request.tenant.empty()) request.tenant = options_.tenant;
  auto run = std::make_shared<GenerateRun>(this, std::move(request), observer, std::move(pass));
  if (const Status posted = parts_.executor->Post([run] { run->Begin(); }); !posted.ok()) {
    run->Refuse(Errorf(StatusCode::kResourceExhausted, "too many requests wait to be tokenised"));
  }
  return std::make_unique<CallHandle>(std::move(run));
}

GenerateError RouterEngine::Refused(Gate::Refusal refusal) const {
  GenerateError error;
  error.retry_after = kTryAgain;
  error.status =
      refusal == Gate::Refusal::kClosed
          ? Errorf(StatusCode::kUnavailable, "the router is shutting down")
          : Errorf(StatusCode::kResourceExhausted,
                   "{} requests are under way, and more are not taken", options_.max_requests);
  return error;
}

GenerateError RouterEngine::UnknownModel(const std::string& name) const {
  GenerateError error;
  error.status = Errorf(StatusCode::kNotFound, "field 'model': got '{}', expected '{}'", name,
                        options_.model_id);
  error.field = "model";
  return error;
}

std::optional<GenerateError> RouterEngine::Prepare(const GenerateRequest& request,
                                                   std::vector<worker::TokenId>* tokens) {
  if (!IsModel(request.model)) return UnknownModel(request.model);
  if (auto error = CheckRequest(request, parts_.clock->Now())) return error;
  auto encoded = parts_.encoder->Encode(request, options_.context_tokens);
  if (!encoded.ok()) {
    GenerateError error = FieldError(FieldOfPrompt(request), Message(encoded.status()));
    if (encoded.status().code() != StatusCode::kInvalidArgument) {
      error.status = Annotate(encoded.status(), fmt::format("field '{}'", error.field));
    }
    return error;
  }
  *tokens = *std::move(encoded);
  return std::nullopt;
}

bool RouterEngine::IsModel(const std::string& name) const {
  return name.empty() || name == options_.model_id ||
         std::ranges::find(options_.aliases, name) != options_.aliases.end();
}

std::variant<RouterEngine::Picked, GenerateError> RouterEngine::DecideAlone(
    const GenerateRequest& request, const PickHow& how) {
  std::vector<worker::TokenId> tokens;
  if (!how.has_prompt) {
    if (!IsModel(request.model)) return UnknownModel(request.model);
  } else if (auto error = Prepare(request, &tokens)) {
    return *std::move(error);
  }
  PromptKeys keys(tokens);
  const std::vector<RegisteredWorker> workers = parts_.registry->Workers();
  Ask ask;
  ask.prompt_tokens = static_cast<uint32_t>(tokens.size());
  ask.max_tokens = request.max_tokens;
  ask.priority = request.priority;
  ask.followed = how.followed;
  ask.offers = MakeOffers(workers, &keys, parts_.index);
  for (Offer& offer : ask.offers) {
    if (how.may == nullptr || !*how.may || (*how.may)(offer.worker)) continue;
    offer.usable = false;
    offer.reason = "the caller does not want it";
  }
  Decision decision = parts_.dispatcher->Decide(ask);
  GenerateError error;
  if (decision.kind == Decision::Kind::kShed) {
    error.status =
        Errorf(StatusCode::kResourceExhausted, "it would wait {:.1f}s, try again in {:.0f}s",
               decision.wait_seconds, Seconds(decision.retry_after));
    error.retry_after = decision.retry_after;
    return error;
  }
  if (decision.kind == Decision::Kind::kNoWorker) {
    const std::string waiting = Waiting();
    error.status = Errorf(StatusCode::kUnavailable, "no worker can answer: {}",
                          waiting.empty() ? "the caller wants none that is ready" : waiting);
    error.retry_after = kTryAgain;
    return error;
  }
  const RegisteredWorker& worker = workers[decision.picked];
  if (how.followed) NoteSent(worker, keys.Of(*worker.info));
  Picked picked;
  picked.ticket = decision.ticket;
  picked.pick.worker = worker.address;
  picked.pick.policy = std::string(parts_.dispatcher->policy());
  picked.pick.prompt_tokens = ask.prompt_tokens;
  picked.pick.candidates = std::move(decision.candidates);
  return picked;
}

Result<Pick> RouterEngine::PickWorker(const GenerateRequest& request) {
  auto picked = DecideAlone(request, {});
  if (const auto* error = std::get_if<GenerateError>(&picked)) return error->status;
  return std::get<Picked>(std::move(picked)).pick;
}

void RouterEngine::PickAndFollow(PickAsk ask, PickDone done) {
  Gate::Refusal refusal = Gate::Refusal::kNone;
  // Tasks are copied.
  const auto pass = std::make_shared<Gate::Pass>(gate_.Enter(&refusal));
  if (!*pass) return done(Refused(refusal));
  const auto shared = std::make_shared<const PickAsk>(std::move(ask));
  const Status posted = parts_.executor->Post(
      [this, shared, pass, done] { Follow(*shared, std::move(*pass), done); });
  if (posted.ok()) return;
  GenerateError error;
  error.status = Errorf(StatusCode::kResourceExhausted, "too many requests wait to be tokenised");
  error.retry_after = kTryAgain;
  done(std::move(error));
}

void RouterEngine::Follow(const PickAsk& ask, Gate::Pass pass, const PickDone& done) {
  auto picked = DecideAlone(ask.request,
                            {.has_prompt = ask.has_prompt, .followed = true, .may = &ask.may});
  if (auto* error = std::get_if<GenerateError>(&picked)) return done(std::move(*error));
  auto& found = std::get<Picked>(picked);
  done(FollowedPick{
      .pick = std::move(found.pick),
      .lease = std::make_unique<TicketLease>(parts_.dispatcher, found.ticket, std::move(pass))});
}

void RouterEngine::NoteSent(const RegisteredWorker& worker, std::span<const BlockKey> keys) {
  if (options_.exact_index || keys.empty()) return;
  parts_.index->Sent(worker.address, *worker.info->fingerprint, keys);
}

std::variant<std::vector<PromptHolder>, GenerateError> RouterEngine::Holders(
    const HoldersQuery& query) {
  if (!IsModel(query.model)) return UnknownModel(query.model);
  return FindHolders(parts_.registry->Workers(), query, parts_.index);
}

std::vector<ServedModel> RouterEngine::Models() {
  uint32_t ready = 0;
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    if (worker.condition == WorkerCondition::kReady) ++ready;
  }
  std::vector<ServedModel> models = {{options_.model_id, options_.context_tokens, ready}};
  for (const std::string& alias : options_.aliases) {
    models.push_back({alias, options_.context_tokens, ready});
  }
  return models;
}

bool RouterEngine::Drain(TimePoint deadline) {
  gate_.Close();
  return gate_.WaitEmpty(deadline);
}

RouterEngine::Numbers RouterEngine::numbers() const {
  Numbers numbers;
  numbers.completed = counters_.completed;
  numbers.cancelled = counters_.cancelled;
  numbers.rejected = counters_.rejected;
  numbers.shed = counters_.shed;
  numbers.unavailable = counters_.unavailable;
  numbers.broken = counters_.broken;
  numbers.active = gate_.inside();
  numbers.tries_again = counters_.tries_again;
  numbers.prompt_tokens = counters_.prompt_tokens;
  numbers.cached_tokens = counters_.cached_tokens;
  numbers.generated_tokens = counters_.generated_tokens;
  return numbers;
}

std::string RouterEngine::Waiting() const {
  std::string waiting;
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    if (worker.condition == WorkerCondition::kReady) return "";
    waiting += fmt::format("{}{} ({})", waiting.empty() ? "" : ", ", worker.address, worker.reason);
  }
  return "waiting for workers: " + waiting;
}

}  // namespace cairn::router
