#include "services/router/engine/generate_run.h"

#include <algorithm>
#include <utility>

#include "services/router/engine/check_request.h"

namespace cairn::router {
namespace {

// The most that workers take.
constexpr double kLongestAwait = 600;

// How long a worker may wait for a prompt that is expected to be computed in `seconds`.
// Estimates are rough, and a worker that dies ends the wait anyway.
Duration AwaitFor(double seconds) {
  const double most = std::min(2 + 2 * seconds, kLongestAwait);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(most));
}

std::string EngineSaid(int status) {
  return fmt::format("the engine answered with HTTP status {}", status);
}

// Whether another worker may do better. A worker's own answer about the request is final.
bool WorthAnotherWorker(const Status& status) {
  switch (status.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kResourceExhausted:
    case StatusCode::kAborted:
    case StatusCode::kInternal:
    case StatusCode::kUnknown:
    case StatusCode::kCancelled:
    case StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

// Passes on what a worker answers.
class GenerateRun::Attempt final : public WorkerAnswerObserver {
 public:
  explicit Attempt(std::shared_ptr<GenerateRun> run) : run_(std::move(run)) {}
  void OnToken(model::TokenId id, std::string_view text) override { run_->OnToken(id, text); }
  void OnRawHead(const RawHead& head) override { run_->OnRawHead(head); }
  void OnRawBytes(std::string_view bytes, uint32_t tokens) override {
    run_->OnRawBytes(bytes, tokens);
  }
  void OnRefused(const Status& status, const RawAnswer& answer) override {
    run_->OnRefused(status, answer);
  }
  void OnDone(const WorkerAnswer& answer) override { run_->OnDone(answer); }
  void OnError(const Status& status) override { run_->OnError(status); }
  void OnUnreached(const Status& status) override { run_->OnUnreached(status); }

 private:
  const std::shared_ptr<GenerateRun> run_;
};

GenerateRun::GenerateRun(RunServices& services, GenerateRequest request,
                         std::shared_ptr<GenerateObserver> observer, Gate::Pass pass)
    : services_(services),
      request_(std::move(request)),
      begin_(services.parts.clock->Now()),
      observer_(std::move(observer)),
      pass_(std::make_shared<const Gate::Pass>(std::move(pass))) {
  if (services.parts.tracer == nullptr) return;
  place_ = services.parts.tracer->Begin(request_.names.trace, /*entry=*/true);
  if (place_) request_.names.trace = place_->text();
}

void GenerateRun::EndSpan(const std::string& error, int http_status,
                          const GenerateSummary& summary) {
  if (!place_) return;
  tracing::Attributes attributes;
  const auto add_text = [&attributes](const char* name, const std::string& text) {
    if (!text.empty()) attributes.emplace_back(name, text);
  };
  const auto add_number = [&attributes](const char* name, int64_t number) {
    if (number > 0) attributes.emplace_back(name, number);
  };
  add_text("request_id", request_.names.id);
  add_text("caller_request_id", request_.names.caller_id);
  add_text("trace_word", request_.names.word);
  add_number("http.response.status_code", http_status);
  add_text("worker", worker_);
  add_text("prefill_worker", prefill_worker_);
  add_text("finish_reason", summary.finish_reason);
  attributes.emplace_back("attempts", static_cast<int64_t>(tried_.size()));
  attributes.emplace_back("generated_tokens", int64_t{answer_.generated});
  // Engines need not tell it.
  const uint32_t prompt_tokens = std::max(prompt_.counted, summary.prompt_tokens);
  add_number("prompt_tokens", prompt_tokens);
  if (summary.prompt_tokens > 0) {
    attributes.emplace_back("cached_tokens", int64_t{summary.cached_tokens});
  }
  services_.parts.tracer->End({.place = *place_,
                               .kind = tracing::SpanKind::kServer,
                               .name = std::string(kRouteSpan),
                               .begin = begin_,
                               .end = services_.parts.clock->Now(),
                               .attributes = std::move(attributes),
                               .error = error});
}

void GenerateRun::Refuse(const Status& status) {
  ++(status.code() == StatusCode::kUnavailable ? services_.counters.unavailable
                                               : services_.counters.shed);
  GenerateError error;
  error.status = status;
  error.retry_after = kTryAgain;
  Fail(error);
}

void GenerateRun::Begin() {
  Prepare(
      services_, &request_, [self = shared_from_this()] { return self->cancelled(); },
      [self = shared_from_this()](std::variant<PreparedPrompt, GenerateError> prompt,
                                  bool elsewhere) {
        self->OnPrompt(std::move(prompt), elsewhere);
      });
}

void GenerateRun::OnPrompt(std::variant<PreparedPrompt, GenerateError> prompt, bool elsewhere) {
  if (const auto* error = std::get_if<GenerateError>(&prompt)) {
    std::atomic<uint64_t>* count = &services_.counters.rejected;
    if (error->status.code() == StatusCode::kCancelled) count = &services_.counters.cancelled;
    if (error->status.code() == StatusCode::kUnavailable) count = &services_.counters.unavailable;
    if (error->status.code() == StatusCode::kResourceExhausted) count = &services_.counters.shed;
    ++*count;
    return Fail(*error);
  }
  if (!TakeTokens(std::get<PreparedPrompt>(std::move(prompt)))) return;
  if (!elsewhere) return TryNext();
  OnExecutor([self = shared_from_this()] { self->TryNext(); });
}

bool GenerateRun::TakeTokens(PreparedPrompt prompt) {
  request_.prompt = std::string();  // It may be long, and the tokens say it all.
  prompt.tokens.shrink_to_fit();
  if (const Status room = request_.share.Charge(TokenBytes(prompt.tokens.size())); !room.ok()) {
    ++services_.counters.unavailable;
    Fail(NoRoomFor(fmt::format("got {} tokens", prompt.tokens.size()), room));
    return false;
  }
  prompt_.exact = prompt.exact;
  if (prompt.exact) prompt_.counted = static_cast<uint32_t>(prompt.tokens.size());
  prompt_.tokens = std::make_shared<const std::vector<model::TokenId>>(std::move(prompt.tokens));
  prompt_.keys = std::make_unique<PromptKeys>(*prompt_.tokens, prompt.space);
  return true;
}

void GenerateRun::LetGoOfRequest() {
  request_.raw.reset();
  request_.prompt = std::string();
  prompt_.keys.reset();
  prompt_.tokens.reset();
  request_.share.Clear();
}

void GenerateRun::TryNext() {
  if (cancelled()) {
    ++services_.counters.cancelled;
    GenerateError error;
    error.status = Errorf(StatusCode::kCancelled, "the request was cancelled");
    return Fail(error);
  }
  const bool raw = request_.raw != nullptr;  // An engine's answer is its own.
  if (accepted_ && !raw && request_.deadline &&
      *request_.deadline <= services_.parts.clock->Now()) {
    WorkerAnswer answer;  // As a worker's, which would refuse a request that comes too late.
    answer.prompt_tokens = static_cast<uint32_t>(prompt_.tokens->size());
    answer.finish_reason = "deadline";
    return OnDone(answer);
  }
  prefill_worker_.clear();
  prefill_cached_.reset();
  const std::vector<RegisteredWorker> workers = services_.parts.registry->Workers();
  Decision decision;
  if (tried_.size() - unreached_ < services_.options.max_tries) decision = Decide(workers);
  if (decision.kind != Decision::Kind::kPicked) return FailUntaken(decision);
  if (!accepted_ && services_.observers.prepared) {
    services_.observers.prepared(Seconds(services_.parts.clock->Now() - begin_));
  }
  accepted_ = true;
  ticket_ = decision.ticket;
  const RegisteredWorker& worker = workers[decision.picked];
  if (decision.prefill) {
    SendBoth(workers[decision.prefill->worker], worker, *decision.prefill);
  } else {
    Send(worker, decision.candidates[decision.picked].held_tokens, Duration(0));
  }
}

Decision GenerateRun::Decide(const std::vector<RegisteredWorker>& workers) {
  const RouterParts& parts = services_.parts;
  Ask ask;
  ask.prompt_tokens = CountedTokens(workers, request_.model, prompt_.tokens->size());
  ask.max_tokens = request_.max_tokens;
  ask.priority = request_.priority;
  ask.tenant = request_.tenant;
  ask.first_try = !accepted_;
  ask.offers = MakeOffers(
      workers,
      {.model = request_.model, .exact_tokens = prompt_.exact ? prompt_.tokens->size() : 0},
      services_.options.pairing && !prefill_failed_, prompt_.keys.get(), parts.index);
  for (Offer& offer : ask.offers) {
    if (std::ranges::find(tried_, offer.worker) == tried_.end()) continue;
    offer.usable = false;
    offer.reason = "it has failed this request";
  }
  return parts.dispatcher->Decide(ask);
}

void GenerateRun::FailUntaken(const Decision& decision) {
  if (answer_.refusal && decision.kind == Decision::Kind::kNoWorker) return PassRefusal();
  GenerateError error;
  if (decision.kind == Decision::Kind::kShed) {
    ++services_.counters.shed;
    error.status = Errorf(StatusCode::kResourceExhausted,
                          "it would wait {:.1f}s at every worker, try again in {:.0f}s",
                          decision.wait_seconds, Seconds(decision.retry_after));
    error.retry_after = decision.retry_after;
  } else if (last_error_.code() == StatusCode::kResourceExhausted) {
    ++services_.counters.shed;
    error.status = last_error_;
    error.retry_after = kTryAgain;
  } else {
    ++services_.counters.unavailable;
    error.status =
        last_error_.ok()
            ? Errorf(StatusCode::kUnavailable, "no worker can answer: {}", services_.Waiting())
            : Errorf(StatusCode::kUnavailable, "no worker can answer, the last said: {}",
                     Message(last_error_));
    error.retry_after = kTryAgain;
  }
  Fail(error);
}

void GenerateRun::SendBoth(const RegisteredWorker& prefill, const RegisteredWorker& worker,
                           const Decision::Prefill& decision) {
  ++services_.counters.paired;
  const auto asked = [self = shared_from_this(), worker, address = prefill.address,
                      await = AwaitFor(decision.seconds)](bool announced) {
    if (announced && !self->cancelled()) {
      self->prefill_worker_ = address;
      return self->Send(worker, /*held_tokens=*/0, await);
    }
    // The worker counts as one that computes next to nothing. So all is decided again.
    self->EndPrefill();
    self->EndTicket({});
    self->prefill_failed_ = true;
    self->TryNext();
  };
  const auto half = std::make_shared<PrefillHalf>(PrefillHalf::Parts{
      .dispatcher = services_.parts.dispatcher,
      .decision = decision,
      .failures = &services_.counters.prefills_failed,
      .pass = pass_,
      .begun = [self = shared_from_this(), asked](
                   bool announced) { self->OnExecutor([asked, announced] { asked(announced); }); },
  });
  {
    MutexLock lock(mu_);
    prefill_ = half;
  }
  half->Begin(prefill.link.get(), RequestFor(*prefill.info));
  if (cancelled()) half->Cancel();
}

void GenerateRun::Send(const RegisteredWorker& worker, uint32_t held_tokens, Duration await) {
  worker_ = worker.address;
  if (!tried_.empty()) ++services_.counters.tries_again;
  tried_.push_back(worker.address);
  services_.NoteSent(worker, prompt_.keys.get());
  WorkerRequest wanted = RequestFor(*worker.info);
  wanted.held_tokens = held_tokens;
  wanted.await_prefill = await;
  const size_t attempt = tried_.size();
  std::shared_ptr<WorkerCall> call =
      worker.link->Generate(wanted, std::make_shared<Attempt>(shared_from_this()));
  bool cancel = false;
  {
    MutexLock lock(mu_);
    // It may have failed already, and another attempt may be under way.
    if (attempt < attempts_) return;
    attempts_ = attempt;
    call_ = call;
    cancel = cancelled_;
  }
  if (cancel) call->Cancel();
}

WorkerRequest GenerateRun::RequestFor(const WorkerInfo& info) const {
  WorkerRequest wanted;
  wanted.raw = request_.raw;
  wanted.prompt_tokens = static_cast<uint32_t>(prompt_.tokens->size());
  // An engine computes no more than its context, whatever the text that stands for the tokens is.
  const uint32_t context = ContextOf(info, request_.model);
  if (context > 0) wanted.prompt_tokens = std::min(wanted.prompt_tokens, context);
  wanted.tokens = prompt_.tokens;
  if (request_.max_tokens && !info.engine) {
    // A worker may have less context than the model. It cuts the answer to the room that is left.
    wanted.max_tokens = std::min(*request_.max_tokens, info.context_tokens);
  }
  wanted.temperature = request_.temperature;
  wanted.top_k = request_.top_k;
  wanted.top_p = request_.top_p;
  wanted.seed = request_.seed;
  wanted.stop = request_.stop;
  wanted.ignore_eos = request_.ignore_eos;
  wanted.priority = request_.priority;
  wanted.tenant = request_.tenant;
  wanted.deadline = request_.deadline;
  wanted.next = request_.next;
  wanted.trace = request_.names.trace;
  return wanted;
}

void GenerateRun::Cancel() {
  std::shared_ptr<WorkerCall> call;
  std::shared_ptr<PrefillHalf> prefill;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    call = call_;
    prefill = prefill_;
  }
  if (prefill != nullptr) prefill->Cancel();
  if (call != nullptr) call->Cancel();
}

void GenerateRun::EndPrefill() {
  std::shared_ptr<PrefillHalf> prefill;
  {
    MutexLock lock(mu_);
    prefill = std::move(prefill_);
  }
  if (prefill == nullptr) return;
  prefill_cached_ = prefill->cached_tokens();
  prefill->Cancel();
}

void GenerateRun::FirstToken() {
  EndPrefill();  // The worker has the whole prompt.
  services_.parts.dispatcher->OnComputed(ticket_);
  LetGoOfRequest();
  answer_.first_token = services_.parts.clock->Now();
  if (services_.observers.first_token) {
    services_.observers.first_token(Seconds(*answer_.first_token - begin_));
  }
}

void GenerateRun::ObserveAnswer() {
  const TimePoint now = services_.parts.clock->Now();
  if (services_.observers.answered) services_.observers.answered(Seconds(now - begin_));
  if (services_.observers.token && answer_.first_token && answer_.generated > 1) {
    services_.observers.token(Seconds(now - *answer_.first_token) / (answer_.generated - 1));
  }
}

void GenerateRun::OnToken(model::TokenId id, std::string_view text) {
  if (answer_.generated++ == 0) FirstToken();
  answer_.text_bytes += text.size();
  ++services_.counters.generated_tokens;
  observer_->OnToken(id, text);
}

void GenerateRun::OnRawHead(const RawHead& head) {
  answer_.raw_status = head.status;
  LetGoOfRequest();
  // A whole answer says nothing about its first token.
  if (head.stream) FirstToken();
  observer_->OnRawHead(head);
}

void GenerateRun::OnRawBytes(std::string_view bytes, uint32_t tokens) {
  answer_.generated += tokens;
  services_.counters.generated_tokens += tokens;
  observer_->OnRawBytes(bytes);
}

void GenerateRun::OnRefused(const Status& status, const RawAnswer& answer) {
  answer_.refusal = answer;
  OnError(status);
}

void GenerateRun::OnUnreached(const Status& status) {
  // Else a request would fail while half of a set of workers goes, and the others could answer.
  ++unreached_;
  OnError(status);
}

void GenerateRun::PassRefusal() {
  ++(answer_.refusal->head.status == 429 ? services_.counters.shed
                                         : services_.counters.unavailable);
  observer_->OnRawHead(answer_.refusal->head);
  observer_->OnRawBytes(*answer_.refusal->body);
  GenerateSummary summary;
  summary.worker = worker_;
  LetGoOfRequest();
  EndSpan(EngineSaid(answer_.refusal->head.status), observer_->HttpStatus(nullptr), summary);
  const auto pass = std::move(pass_);
  std::exchange(observer_, nullptr)->OnDone(summary);
}

void GenerateRun::EndTicket(const RequestEnd& end) {
  if (ticket_ != 0) services_.parts.dispatcher->OnEnd(std::exchange(ticket_, 0), end);
}

void GenerateRun::OnDone(const WorkerAnswer& answer) {
  RequestEnd end;
  end.generated_tokens = answer.completion_tokens;
  end.complete = answer.finish_reason == "stop" || answer.finish_reason == "length";
  end.fetched_tokens = answer.fetched_tokens;
  end.fetch_seconds = answer.fetch_seconds;
  EndTicket(end);
  EndPrefill();
  if (end.complete) ObserveAnswer();
  LetGoOfRequest();  // Its caller may keep the call until all of the answer has left.
  GenerateSummary summary;
  summary.prompt_tokens = answer.prompt_tokens;
  summary.cached_tokens = answer.fetched_tokens + answer.shared_tokens;
  // Tokens that another worker computed for this request were not cached.
  if (prefill_cached_) summary.cached_tokens = std::min(summary.cached_tokens, *prefill_cached_);
  summary.shared_tokens = std::min(answer.shared_tokens, summary.cached_tokens);
  summary.prefill_worker = prefill_worker_;
  summary.completion_tokens = answer.completion_tokens;
  summary.finish_reason = answer.finish_reason;
  if (answer.text.size() > answer_.text_bytes) {
    summary.text_tail = answer.text.substr(answer_.text_bytes);
  }
  summary.worker = worker_;
  if (answer_.raw_status >= 400) {
    ++services_.counters.rejected;
  } else {
    ++(answer.finish_reason == "cancelled" ? services_.counters.cancelled
                                           : services_.counters.completed);
  }
  services_.counters.prompt_tokens += summary.prompt_tokens;
  services_.counters.cached_tokens += summary.cached_tokens;
  EndSpan(answer_.raw_status >= 400 ? EngineSaid(answer_.raw_status) : "",
          observer_->HttpStatus(nullptr), summary);
  // Whoever waits for the last request to end may go on when the observer has got its end.
  const auto pass = std::move(pass_);
  std::exchange(observer_, nullptr)->OnDone(summary);
}

void GenerateRun::OnError(const Status& status) {
  EndTicket({.generated_tokens = answer_.generated});
  GenerateError error;
  error.status = status;
  if (cancelled()) {
    ++services_.counters.cancelled;
    error.status = Errorf(StatusCode::kCancelled, "the request was cancelled");
    return Fail(error);
  }
  if (answer_.generated > 0 || answer_.raw_status > 0) {
    ++services_.counters.broken;
    error.status = Errorf(status.code(), "worker {} failed in the middle of its answer: {}",
                          worker_, Message(status));
    return Fail(error);
  }
  if (!WorthAnotherWorker(status)) {
    ++services_.counters.rejected;
    return Fail(error);
  }
  last_error_ = Annotate(status, "worker " + worker_);
  EndPrefill();
  OnExecutor([self = shared_from_this()] { self->TryNext(); });
}

void GenerateRun::OnExecutor(std::function<void()> work) {
  const Status posted = services_.ExecutorOf(request_)->Post(std::move(work));
  if (!posted.ok()) Refuse(Annotate(posted, "too many requests wait"));
}

void GenerateRun::Fail(const GenerateError& error) {
  EndPrefill();
  EndTicket({});
  LetGoOfRequest();
  EndSpan(ToString(error.status), observer_->HttpStatus(&error), {});
  const auto pass = std::move(pass_);
  std::exchange(observer_, nullptr)->OnError(error);
}

}  // namespace cairn::router
