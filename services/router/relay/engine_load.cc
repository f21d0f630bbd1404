#include "services/router/relay/engine_load.h"

#include <algorithm>

namespace cairn::router {
namespace {

// Measurements until a speed counts as known.
constexpr uint64_t kEnoughPrompts = 4;
constexpr uint64_t kEnoughSteps = 64;
// At most this part of the prompt that is being computed counts as done.
constexpr double kMostDone = 0.9;
constexpr double kMostTokensOfEvent = 1024;
// An engine computes prompts in their order, whatever their priorities are here.
constexpr int32_t kNeverOvertaken = 10;

}  // namespace

uint64_t EngineLoad::Begin(const Prompt& prompt) {
  const TimePoint now = clock_->Now();
  MutexLock lock(mu_);
  Request request;
  request.sent = request.last_token = now;
  // The last token is always computed.
  request.tokens = std::max(1.0, static_cast<double>(prompt.tokens) - prompt.held_tokens);
  request.stream = prompt.stream;
  request.alone = waiting_ == 0;
  if (request.stream && waiting_++ == 0) busy_since_ = now;
  requests_.emplace(next_id_, request);
  return next_id_++;
}

void EngineLoad::Tokens(uint64_t id, uint32_t events) {
  if (events == 0) return;
  const TimePoint now = clock_->Now();
  MutexLock lock(mu_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (!request.decodes) {
    request.decodes = true;
    StopWaiting(&request, now, /*computed=*/true);
    ++decoding_;
  } else if (waiting_ == 0 && request.last_token >= free_since_) {
    step_.Add(decoding_, Seconds(now - request.last_token) / events);
  }
  request.last_token = now;
}

void EngineLoad::End(uint64_t id) {
  const TimePoint now = clock_->Now();
  MutexLock lock(mu_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  if (found->second.decodes) {
    --decoding_;
  } else if (found->second.stream) {
    StopWaiting(&found->second, now, /*computed=*/false);
  }
  requests_.erase(found);
}

void EngineLoad::StopWaiting(Request* request, TimePoint now, bool computed) {
  if (!request->stream) return;
  if (--waiting_ == 0) free_since_ = now;
  if (!computed) return;
  if (request->alone) alone_.Add(request->tokens, Seconds(now - request->sent));
  // Since the first token before this one, if this one waited then.
  drain_.Add(request->tokens, Seconds(now - std::max(busy_since_, request->sent)));
  busy_since_ = now;
}

void EngineLoad::Length(uint32_t events, uint32_t tokens) {
  if (events == 0) return;
  MutexLock lock(mu_);
  length_.Add(events, tokens);
}

uint32_t EngineLoad::TokensOf(uint32_t events) const {
  MutexLock lock(mu_);
  return static_cast<uint32_t>(events * TokensOfEvent());
}

double EngineLoad::TokensOfEvent() const {
  return std::clamp(length_.ratio(), 1.0, kMostTokensOfEvent);
}

double EngineLoad::PrefillSpeed() const {
  double token = 0;
  if (alone_.count() >= kEnoughPrompts) {
    token = alone_.slope() > 0 ? alone_.slope() : alone_.ratio();
  } else if (drain_.count() >= kEnoughPrompts) {
    token = drain_.ratio();  // At a busy engine prompts are never alone.
  }
  return token > 0 ? 1 / token : 0;
}

double EngineLoad::DrainSpeed() const {
  if (drain_.count() < kEnoughPrompts || drain_.ratio() <= 0) return PrefillSpeed();
  return 1 / drain_.ratio();
}

double EngineLoad::AssumedSpeed() const {
  const double speed = DrainSpeed();
  return speed > 0 ? speed : kAssumedTokensPerSecond;
}

bool EngineLoad::Computed(const Request& request, TimePoint now) const {
  if (request.stream) return request.decodes;
  return Seconds(now - request.sent) > request.tokens / AssumedSpeed();
}

WorkerLoad EngineLoad::Report() const {
  const TimePoint now = clock_->Now();
  MutexLock lock(mu_);
  WorkerLoad load;
  // As vLLM and SGLang do unless they are told otherwise.
  load.first_in_first_out = true;
  load.of_this_router = true;
  double tokens = 0;
  const Request* oldest = nullptr;
  WorkerLoad::Queued queued = {.priority = kNeverOvertaken, .requests = 0, .prefill_tokens = 0};
  for (const auto& [id, request] : requests_) {
    if (Computed(request, now)) {
      ++load.running_decodes;
      continue;
    }
    tokens += request.tokens;
    ++queued.requests;
    queued.prefill_tokens += static_cast<uint64_t>(request.tokens);
    if (oldest == nullptr || request.sent < oldest->sent) oldest = &request;
  }
  load.prefill_tokens_per_second = PrefillSpeed();
  load.drain_tokens_per_second = DrainSpeed();
  const double speed = AssumedSpeed();
  if (oldest != nullptr) {
    const double since = Seconds(now - std::max(busy_since_, oldest->sent));
    tokens -= std::min(kMostDone * oldest->tokens, since * speed);
    load.prefill_seconds = tokens / speed;
    load.queued.push_back(queued);
  }
  if (step_.count() >= kEnoughSteps) {
    load.step_seconds = step_.intercept() / TokensOfEvent();
    load.decode_seconds = step_.slope() / TokensOfEvent();
  }
  return load;
}

}  // namespace cairn::router
