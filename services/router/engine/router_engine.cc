#include "services/router/engine/router_engine.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "services/router/engine/check_request.h"
#include "services/router/engine/generate_run.h"
#include "services/router/engine/held_prefix.h"
#include "services/router/engine/pick_run.h"
#include "services/router/engine/prompt_holders.h"
#include "services/router/engine/prompt_work.h"

namespace cairn::router {
namespace {

// Limit for the ids of models in an error.
constexpr size_t kMaxListedBytes = 512;
// The longest token of an engine whose tokens are not known. Vocabularies have longer ones, of
// spaces, but no text that anybody means is made of them.
constexpr uint64_t kMostTokenBytes = 64;

// Cancels when its caller lets go of it.
class CallHandle final : public GenerateCall {
 public:
  explicit CallHandle(std::shared_ptr<GenerateRun> run) : run_(std::move(run)) {}
  ~CallHandle() override { run_->Cancel(); }
  void Cancel() override { run_->Cancel(); }

 private:
  const std::shared_ptr<GenerateRun> run_;
};

// A call that ended before it began.
class EndedCall final : public GenerateCall {
 public:
  void Cancel() override {}
};

}  // namespace

RouterEngine::RouterEngine(Options options, const Parts& parts, Observers observers)
    : options_(std::move(options)),
      parts_(parts),
      observers_(std::move(observers)),
      gate_(options_.max_requests),
      queue_({.threads = options_.threads,
              .piece_bytes = options_.piece_bytes,
              .tenant_bytes = options_.tenant_bytes,
              .tenants = options_.tenants},
             parts.executor, parts.clock) {}

std::unique_ptr<GenerateCall> RouterEngine::Generate(GenerateRequest request,
                                                     std::shared_ptr<GenerateObserver> observer) {
  Gate::Refusal refusal = Gate::Refusal::kNone;
  Gate::Pass pass = gate_.Enter(&refusal);
  if (!pass) {
    ++(refusal == Gate::Refusal::kClosed ? counters_.unavailable : counters_.shed);
    observer->OnError(Refused(refusal));
    return std::make_unique<EndedCall>();
  }
  if (parts_.prompts != nullptr && request.raw == nullptr) {
    GenerateError error;
    error.status = Errorf(StatusCode::kUnimplemented,
                          "the workers of this router speak OpenAI's API: call its HTTP port");
    ++counters_.rejected;
    observer->OnError(error);
    return std::make_unique<EndedCall>();
  }
  if (request.tenant.empty()) request.tenant = options_.tenant;
  auto run = std::make_shared<GenerateRun>(this, std::move(request), observer, std::move(pass));
  run->Begin();
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

std::optional<GenerateError> RouterEngine::CheckBefore(const GenerateRequest& request) const {
  if (auto error = CheckModel(request.model)) return error;
  if (auto error = CheckRequest(request, parts_.clock->Now())) return error;
  if (parts_.prompts == nullptr) {
    if (request.max_tokens > options_.context_tokens) {
      return FieldError("max_tokens", fmt::format("got {}, expected 1 to {}", *request.max_tokens,
                                                  options_.context_tokens));
    }
    return std::nullopt;
  }
  if (const auto* ids = std::get_if<std::vector<worker::TokenId>>(&request.prompt)) {
    return CheckFits(request, ids->size(), /*exact=*/true);
  }
  // Tools and images stand in the prompt as text that no engine makes tokens of as it is.
  if (request.raw != nullptr && !request.raw->plain) return std::nullopt;
  const uint64_t context = LongestContext(request.model);
  const uint64_t bytes = PromptBytes(request);
  if (context == 0 || bytes <= context * kMostTokenBytes) return std::nullopt;
  return PromptError(request, Errorf(StatusCode::kOutOfRange,
                                     "got {} bytes, expected at most {} for a context of {} tokens",
                                     bytes, context * kMostTokenBytes, context));
}

void RouterEngine::Prepare(
    GenerateRequest* request, std::function<bool()> gone,
    std::function<void(std::variant<PreparedPrompt, GenerateError>, bool)> done) {
  if (auto error = CheckBefore(*request)) return done(*std::move(error), /*elsewhere=*/false);
  const uint64_t bytes = std::max<uint64_t>(1, PromptBytes(*request));
  auto own = std::make_unique<PromptWork>(this, request, std::move(gone), std::move(done));
  PromptWork& prompt = *own;
  if (parts_.prompts != nullptr && parts_.prompts->at_once()) {
    // Nothing is computed or waited for: waking another thread would take longer than the decision.
    while (prompt.Step(bytes) > 0) {
    }
    return;
  }
  std::unique_ptr<FairQueue::Work> work = std::move(own);
  const Status posted = queue_.Post(request->tenant, bytes, work);
  if (posted.ok()) return;
  prompt.Refuse({.status = Annotate(posted, "too much text waits to be tokenised"),
                 .retry_after = kTryAgain});
}

uint32_t RouterEngine::LongestContext(const std::string& model) const {
  return router::LongestContext(parts_.registry->Workers(), model);
}

std::optional<GenerateError> RouterEngine::CheckFits(const GenerateRequest& request, size_t tokens,
                                                     bool exact) const {
  if (!exact || tokens == 0) return std::nullopt;
  const Wanted wanted = {.model = request.model, .exact_tokens = tokens};
  uint32_t longest = 0;
  bool engine = false;
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    if (!worker.answers() || !Serves(*worker.info, request.model)) continue;
    if (Fits(*worker.info, wanted)) return std::nullopt;
    longest = std::max(longest, ContextOf(*worker.info, request.model));
    engine = worker.info->engine;
  }
  if (longest == 0) return std::nullopt;  // No worker is there, which is another error.
  return PromptError(request, Errorf(StatusCode::kOutOfRange, "got {} tokens, expected at most {}",
                                     tokens, engine ? longest : longest - 1));
}

std::optional<GenerateError> RouterEngine::CheckModel(const std::string& name) const {
  std::set<std::string> ids = {options_.model_id};
  if (parts_.prompts == nullptr) {
    if (IsModel(name)) return std::nullopt;
  } else {
    ids.clear();
    for (const RegisteredWorker& worker : parts_.registry->Workers()) {
      // A worker whose models are not known may serve it.
      if (worker.info == nullptr || Serves(*worker.info, name)) return std::nullopt;
      for (const EngineModel& model : worker.info->models) ids.insert(model.id);
    }
  }
  std::string served;
  for (const std::string& id : ids) {
    if (served.size() > kMaxListedBytes) break;
    served += fmt::format("{}'{}'", served.empty() ? "" : ", ", id);
  }
  GenerateError error;
  error.status = Errorf(StatusCode::kNotFound, "field 'model': got '{}', expected {}{}", name,
                        ids.size() > 1 ? "one of " : "", served);
  error.field = "model";
  return error;
}

bool RouterEngine::IsModel(const std::string& name) const {
  return name.empty() || name == options_.model_id ||
         std::ranges::find(options_.aliases, name) != options_.aliases.end();
}

std::variant<RouterEngine::Picked, GenerateError> RouterEngine::Decide(
    const GenerateRequest& request, size_t tokens, bool exact, PromptKeys* keys,
    const PickHow& how) {
  const std::vector<RegisteredWorker> workers = parts_.registry->Workers();
  const uint32_t prompt_tokens = CountedTokens(workers, request.model, tokens);
  Ask ask;
  ask.prompt_tokens = prompt_tokens;
  ask.max_tokens = request.max_tokens;
  ask.priority = request.priority;
  ask.tenant = request.tenant;
  ask.followed = how.followed;
  // A caller that sends the request itself sends it to one worker.
  const bool pairing = options_.pairing && !how.followed;
  ask.offers = MakeOffers(workers, {.model = request.model, .exact_tokens = exact ? tokens : 0},
                          pairing, keys, parts_.index);
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
  Picked picked;
  picked.worker = workers[decision.picked];
  picked.held_tokens = decision.candidates[decision.picked].held_tokens;
  picked.ticket = decision.ticket;
  picked.pick.worker = picked.worker.address;
  if (decision.prefill) {
    picked.pick.prefill_worker = workers[decision.prefill->worker].address;
  }
  picked.pick.policy = std::string(parts_.dispatcher->policy());
  picked.pick.prompt_tokens = prompt_tokens;
  picked.pick.candidates = std::move(decision.candidates);
  return picked;
}

void RouterEngine::PickWorker(GenerateRequest request, PickOnceDone done) {
  PickAsk ask;
  ask.request = std::move(request);
  ask.followed = false;
  PickAndFollow(std::move(ask),
                [done = std::move(done)](std::variant<FollowedPick, GenerateError> picked) {
                  if (const auto* error = std::get_if<GenerateError>(&picked)) {
                    return done(error->status);
                  }
                  done(std::move(std::get<FollowedPick>(picked).pick));
                });
}

void RouterEngine::PickAndFollow(PickAsk ask, PickDone done) {
  Gate::Refusal refusal = Gate::Refusal::kNone;
  Gate::Pass pass = gate_.Enter(&refusal);
  if (!pass) return done(Refused(refusal));
  if (ask.request.tenant.empty()) ask.request.tenant = options_.tenant;
  auto run = std::make_shared<PickRun>(this, std::move(ask), std::move(pass), std::move(done));
  run->Begin();
}

void RouterEngine::NoteSent(const RegisteredWorker& worker, PromptKeys* keys) {
  // An engine whose events are followed says itself what it holds.
  const bool exact =
      worker.info->engine ? !worker.report->cache_node_id.empty() : options_.exact_index;
  const std::vector<BlockKey>& blocks = keys->Of(*worker.info);
  if (exact || blocks.empty()) return;
  parts_.index->Sent(worker.address, keys->SpaceOf(*worker.info)->fingerprint, blocks);
}

std::variant<std::vector<PromptHolder>, GenerateError> RouterEngine::Holders(
    const HoldersQuery& query) {
  if (auto error = CheckModel(query.model)) return *std::move(error);
  return FindHolders(parts_.registry->Workers(), query, parts_.index);
}

std::vector<ServedModel> RouterEngine::EngineModels() {
  std::vector<ServedModel> models;
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    if (worker.condition != WorkerCondition::kReady) continue;
    for (const EngineModel& model : worker.info->models) {
      auto known = std::ranges::find(models, model.id, &ServedModel::id);
      if (known == models.end()) {
        models.push_back({model.id, model.context_tokens, 0, model.object});
        known = std::prev(models.end());
      }
      ++known->workers;
    }
  }
  return models;
}

std::vector<ServedModel> RouterEngine::Models() {
  if (parts_.prompts != nullptr) return EngineModels();
  uint32_t ready = 0;
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    if (worker.answers()) ++ready;
  }
  std::vector<ServedModel> models = {{options_.model_id, options_.context_tokens, ready, {}}};
  for (const std::string& alias : options_.aliases) {
    models.push_back({alias, options_.context_tokens, ready, {}});
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
  numbers.paired = counters_.paired;
  numbers.prefills_failed = counters_.prefills_failed;
  numbers.prompt_tokens = counters_.prompt_tokens;
  numbers.cached_tokens = counters_.cached_tokens;
  numbers.generated_tokens = counters_.generated_tokens;
  return numbers;
}

std::string RouterEngine::Waiting() const {
  std::string waiting;
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    if (worker.answers()) return "";
    waiting += fmt::format("{}{} ({})", waiting.empty() ? "" : ", ", worker.address, worker.reason);
  }
  return "waiting for workers: " + (waiting.empty() ? "none is named yet" : waiting);
}

}  // namespace cairn::router
