#include "services/router/engine/router_engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "services/router/engine/generate_run.h"
#include "services/router/engine/pick_run.h"
#include "services/router/engine/prompt_holders.h"

namespace cairn::router {
namespace {

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
    : gate_(options.max_requests), services_(std::move(options), parts, std::move(observers)) {}

std::unique_ptr<GenerateCall> RouterEngine::Generate(GenerateRequest request,
                                                     std::shared_ptr<GenerateObserver> observer) {
  Gate::Refusal refusal = Gate::Refusal::kNone;
  Gate::Pass pass = gate_.Enter(&refusal);
  if (!pass) {
    ++(refusal == Gate::Refusal::kClosed ? services_.counters.unavailable
                                         : services_.counters.shed);
    observer->OnError(Refused(refusal));
    return std::make_unique<EndedCall>();
  }
  if (services_.parts.prompts != nullptr && request.raw == nullptr) {
    GenerateError error;
    error.status = Errorf(StatusCode::kUnimplemented,
                          "the workers of this router speak OpenAI's API: call its HTTP port");
    ++services_.counters.rejected;
    observer->OnError(error);
    return std::make_unique<EndedCall>();
  }
  if (request.tenant.empty()) request.tenant = services_.options.tenant;
  auto run =
      std::make_shared<GenerateRun>(services_, std::move(request), observer, std::move(pass));
  run->Begin();
  return std::make_unique<CallHandle>(std::move(run));
}

GenerateError RouterEngine::Refused(Gate::Refusal refusal) const {
  GenerateError error;
  error.retry_after = kTryAgain;
  error.status = refusal == Gate::Refusal::kClosed
                     ? Errorf(StatusCode::kUnavailable, "the router is shutting down")
                     : Errorf(StatusCode::kResourceExhausted,
                              "{} requests are under way, and more are not taken (max_requests)",
                              services_.options.max_requests);
  return error;
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
  if (ask.request.tenant.empty()) ask.request.tenant = services_.options.tenant;
  auto run = std::make_shared<PickRun>(services_, std::move(ask), std::move(pass), std::move(done));
  run->Begin();
}

std::variant<std::vector<PromptHolder>, GenerateError> RouterEngine::Holders(
    const HoldersQuery& query) {
  if (auto error = services_.CheckModel(query.model)) return *std::move(error);
  return FindHolders(services_.parts.registry->Workers(), query, services_.parts.index);
}

std::vector<ServedModel> RouterEngine::EngineModels() {
  std::vector<ServedModel> models;
  for (const RegisteredWorker& worker : services_.parts.registry->Workers()) {
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
  if (services_.parts.prompts != nullptr) return EngineModels();
  uint32_t ready = 0;
  for (const RegisteredWorker& worker : services_.parts.registry->Workers()) {
    if (worker.answers()) ++ready;
  }
  // A worker may have less room than the model. A prompt goes where it fits.
  uint32_t context = services_.LongestContextOf(services_.options.model_id);
  if (context == 0) context = services_.options.context_tokens;
  std::vector<ServedModel> models = {{services_.options.model_id, context, ready, {}}};
  for (const std::string& alias : services_.options.aliases) {
    models.push_back({alias, context, ready, {}});
  }
  return models;
}

bool RouterEngine::Drain(TimePoint deadline) {
  gate_.Close();
  return gate_.WaitEmpty(deadline);
}

RouterEngine::Numbers RouterEngine::numbers() const {
  Numbers numbers;
  numbers.completed = services_.counters.completed;
  numbers.cancelled = services_.counters.cancelled;
  numbers.rejected = services_.counters.rejected;
  numbers.shed = services_.counters.shed;
  numbers.unavailable = services_.counters.unavailable;
  numbers.broken = services_.counters.broken;
  numbers.active = gate_.inside();
  numbers.tries_again = services_.counters.tries_again;
  numbers.paired = services_.counters.paired;
  numbers.prefills_failed = services_.counters.prefills_failed;
  numbers.prompt_tokens = services_.counters.prompt_tokens;
  numbers.cached_tokens = services_.counters.cached_tokens;
  numbers.generated_tokens = services_.counters.generated_tokens;
  return numbers;
}

}  // namespace cairn::router
