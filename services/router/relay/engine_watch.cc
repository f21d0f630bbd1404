#include "services/router/relay/engine_watch.h"

#include <algorithm>
#include <utility>

#include "services/router/relay/engine_link.h"
#include "services/router/relay/model_list.h"

namespace cairn::router {
namespace {

constexpr uint64_t kHealthSeconds = 1;
constexpr uint64_t kModelsSeconds = 5;
// A busy engine may be slow to say that it is well.
constexpr Duration kPatience = std::chrono::seconds(2);
constexpr uint32_t kMostFailures = 3;
constexpr uint64_t kMaxBytes = 1 << 20;

bool IsMissing(int status) { return status == 404 || status == 405 || status == 501; }

}  // namespace

std::shared_ptr<WorkerCall> EngineWatch::Begin(Parts parts,
                                               std::shared_ptr<WorkerWatchObserver> observer) {
  auto watch = std::make_shared<EngineWatch>(std::move(parts), std::move(observer));
  watch->AskHealth();
  watch->TickLater();
  return watch;
}

EngineWatch::EngineWatch(Parts parts, std::shared_ptr<WorkerWatchObserver> observer)
    : parts_(std::move(parts)),
      ticks_of_second_(static_cast<uint64_t>(
          std::max<int64_t>(1, Duration(std::chrono::seconds(1)) / parts_.load_interval))),
      observer_(std::move(observer)) {}

void EngineWatch::Cancel() {
  std::shared_ptr<http::ClientCall> call;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    call = std::move(call_);
  }
  if (call != nullptr) call->Cancel();
}

void EngineWatch::Ask(const std::string& path,
                      void (EngineWatch::*answered)(const Result<Fetched>&)) {
  {
    MutexLock lock(mu_);
    if (cancelled_) return;
    answers_.asking = true;
  }
  auto call =
      Fetch(*parts_.client, parts_.origin,
            {.target = path,
             .headers = EngineHeaders(parts_.key),
             .max_body_bytes = kMaxBytes,
             .silence = kPatience},
            ByteShare(), [self = shared_from_this(), answered](const Result<Fetched>& answer) {
              ((*self).*answered)(answer);
            });
  MutexLock lock(mu_);
  if (answers_.asking) call_ = std::move(call);
}

void EngineWatch::AskHealth() { Ask("/health", &EngineWatch::OnHealth); }

void EngineWatch::OnHealth(const Result<Fetched>& answer) {
  if (!answer.ok()) return Answered(answer.status(), std::nullopt);
  if (answer->status != 200 && !IsMissing(answer->status)) {
    return Answered(Errorf(StatusCode::kUnavailable, "GET /health: it answered {}, expected 200",
                           answer->status),
                    std::nullopt);
  }
  bool ask = false;
  {
    MutexLock lock(mu_);
    has_health_ = answer->status == 200;
    ask = !has_health_ || !knows_models_;
  }
  if (ask) return AskModels();
  Answered(OkStatus(), std::nullopt);
}

void EngineWatch::AskModels() { Ask("/v1/models", &EngineWatch::OnModels); }

void EngineWatch::OnModels(const Result<Fetched>& answer) {
  if (!answer.ok()) return Answered(answer.status(), std::nullopt);
  const auto wrong = [&](const std::string& what) {
    Answered(Errorf(StatusCode::kUnavailable, "GET /v1/models: {}", what), std::nullopt);
  };
  if (answer->status == 401) {
    return wrong("it refuses the router's API key (engines.api_key_file)");
  }
  if (answer->status != 200) {
    return wrong(fmt::format("it answered {}, expected 200", answer->status));
  }
  auto models = ParseModelList(answer->body.text());
  if (!models.ok()) return wrong(Message(models.status()));
  Answered(OkStatus(), *std::move(models));
}

void EngineWatch::Answered(const Status& health, std::optional<std::vector<EngineModel>> models) {
  MutexLock lock(mu_);
  answers_.asking = false;
  answers_.health = health;
  if (models) {
    knows_models_ = true;
    answers_.models = std::move(models);
  }
  call_.reset();
}

void EngineWatch::TickLater() {
  parts_.client->After(parts_.load_interval, [self = shared_from_this()] { self->Tick(); });
}

void EngineWatch::Tick() {
  Answers answers;
  bool cancelled = false;
  bool has_health = true;
  {
    MutexLock lock(mu_);
    answers = std::exchange(answers_, Answers{.asking = answers_.asking});
    cancelled = cancelled_;
    has_health = has_health_;
  }
  if (cancelled) {
    return std::exchange(observer_, nullptr)
        ->OnEnd(Errorf(StatusCode::kCancelled, "the watch was cancelled"));
  }
  if (answers.health) {
    failures_ = answers.health->ok() ? 0 : failures_ + 1;
    // While it was never well there is nothing to be patient for.
    if (failures_ >= kMostFailures || (failures_ > 0 && !told_)) {
      return std::exchange(observer_, nullptr)->OnEnd(*answers.health);
    }
  }
  if (answers.models) Tell(*std::move(answers.models));
  if (told_) {
    WorkerReport report;
    report.load = parts_.load->Report();
    report.cache_node_id = parts_.holder;
    observer_->OnReport(report);
  }
  ++ticks_;
  if (!answers.asking && told_) {
    // After a failure at once: three in a row say that it is lost.
    const bool ask_health = ticks_ % (kHealthSeconds * ticks_of_second_) == 0;
    if (ticks_ % (kModelsSeconds * ticks_of_second_) == 0 || (!has_health && ask_health)) {
      AskModels();
    } else if (ask_health || failures_ > 0) {
      AskHealth();
    }
  }
  TickLater();
}

void EngineWatch::Tell(std::vector<EngineModel> models) {
  WorkerInfo info;
  info.engine = true;
  info.block_tokens = parts_.block_tokens;
  if (!models.empty()) {
    info.model = models.front().id;
    info.context_tokens = models.front().context_tokens;
  }
  info.models = std::move(models);
  told_ = true;
  observer_->OnInfo(info);
}

}  // namespace cairn::router
