#include "services/router/rpc/router_service.h"

#include <deque>
#include <map>
#include <utility>

#include "common/config/config.h"
#include "common/rpc/call.h"
#include "common/rpc/deferred_call.h"
#include "common/rpc/pushed_stream.h"
#include "common/rpc/status.h"
#include "common/rpc/unary_call.h"
#include "services/router/rpc/worker_messages.h"

namespace cairn::router {
namespace {

// Text that waits for a client that does not read. Then the request ends.
constexpr size_t kMaxUnreadBytes = 1 << 20;
// An answer's share of the memory for answers grows in steps, and not with each token.
constexpr size_t kShareStep = 4 << 10;

Status WithRetryAfter(const GenerateError& error) {
  if (!error.retry_after || Message(error.status).find("try again") != std::string::npos) {
    return error.status;
  }
  return Status(error.status.code(), fmt::format("{}, try again in {:.0f}s", Message(error.status),
                                                 Seconds(*error.retry_after)));
}

}  // namespace

// One Generate. The worker's link, gRPC and the end of the process call it from any thread.
class GenerateStream final : public rpc::PushedStream {
 public:
  GenerateStream(RouterService* service, const rpc::Context* context, rpc::Method* method,
                 std::unique_ptr<rpc::RawCall> call)
      : PushedStream(std::move(call)),
        service_(service),
        call_(context, method, &this->context()),
        share_(service->parts_.answers) {}

  void Open(const std::shared_ptr<GenerateStream>& self, const grpc::ByteBuffer& frame) {
    Start(self);
    service_->streams_.Add(self);
    auto request = Admit(frame);
    if (!request.ok()) return Finish(request.status());
    auto under_way =
        service_->parts_.engine->Generate(*std::move(request), std::make_shared<Observer>(self));
    {
      MutexLock lock(mu_);
      if (!over_) {
        under_way_ = std::move(under_way);
        return;
      }
    }
    under_way->Cancel();  // The client was faster.
  }
  void Cancel() {
    MutexLock lock(mu_);
    if (under_way_ != nullptr) under_way_->Cancel();
  }

  void Token(model::TokenId id, std::string_view text) {
    v1::GenerateResponse message;
    message.mutable_token()->set_id(id);
    message.mutable_token()->set_text(std::string(text));
    Status room;
    {
      MutexLock lock(mu_);
      room = Charge(message.ByteSizeLong() + sizeof(id) + text.size());
      if (room.ok()) {
        tokens_.push_back(id);
        text_ += text;
        room = Queue(std::move(message));
      }
    }
    room.ok() ? Pump() : Finish(room);
  }
  void Done(const GenerateSummary& summary) {
    v1::GenerateResponse message;
    v1::GenerateSummary& done = *message.mutable_done();
    done.set_prompt_tokens(summary.prompt_tokens);
    done.set_fetched_tokens(summary.cached_tokens - summary.shared_tokens);
    done.set_shared_tokens(summary.shared_tokens);
    done.set_computed_tokens(summary.prompt_tokens - summary.cached_tokens);
    done.set_finish_reason(summary.finish_reason);
    done.set_worker(summary.worker);
    done.set_prefill_worker(summary.prefill_worker);
    {
      MutexLock lock(mu_);
      done.mutable_tokens()->Add(tokens_.begin(), tokens_.end());
      // As the worker's: an end token that was streamed is none of them.
      if (tokens_.size() > summary.completion_tokens) {
        done.mutable_tokens()->Truncate(static_cast<int>(summary.completion_tokens));
      }
      done.set_text(text_ + summary.text_tail);
      (void)Queue(std::move(message));
    }
    Finish(OkStatus());
  }
  void Fail(const GenerateError& error) { Finish(WithRetryAfter(error)); }

 private:
  // Apart: both bases have an OnDone.
  class Observer final : public GenerateObserver {
   public:
    explicit Observer(std::shared_ptr<GenerateStream> stream) : stream_(std::move(stream)) {}
    void OnToken(model::TokenId id, std::string_view text) override { stream_->Token(id, text); }
    void OnDone(const GenerateSummary& summary) override { stream_->Done(summary); }
    void OnError(const GenerateError& error) override { stream_->Fail(error); }

   private:
    const std::shared_ptr<GenerateStream> stream_;
  };

  Result<GenerateRequest> Admit(const grpc::ByteBuffer& frame) {
    call_.Received(frame);
    CAIRN_RETURN_IF_ERROR(call_.Admit());
    v1::GenerateRequest request;
    CAIRN_RETURN_IF_ERROR(call_.Decode(frame, &request));
    CAIRN_ASSIGN_OR_RETURN(GenerateRequest wanted, FromProto(request, service_->parts_.clock->Now(),
                                                             std::chrono::system_clock::now()));
    CAIRN_RETURN_IF_ERROR(service_->CheckTenant(call_, wanted));
    wanted.names.trace = call_.trace();
    return wanted;
  }
  // Room for `more` bytes in addition to those of the answer that are here. RESOURCE_EXHAUSTED:
  // there is none.
  Status Charge(size_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const size_t all =
        unread_ + tokens_.capacity() * sizeof(model::TokenId) + text_.capacity() + more;
    const size_t bytes = (all + kShareStep - 1) / kShareStep * kShareStep;
    if (bytes == share_.bytes()) return OkStatus();
    return Annotate(share_.Charge(bytes), "the answer");
  }
  // RESOURCE_EXHAUSTED: the client reads too slowly.
  Status Queue(v1::GenerateResponse message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    unread_ += message.ByteSizeLong();
    waiting_.push_back(std::move(message));
    if (unread_ <= kMaxUnreadBytes) return OkStatus();
    return Errorf(StatusCode::kResourceExhausted, "{} bytes of the answer were not read",
                  kMaxUnreadBytes);
  }
  // The last message has been queued.
  void Finish(const Status& status) {
    {
      MutexLock lock(mu_);
      if (end_) return;
      end_ = status;
      if (!status.ok()) waiting_.clear();
    }
    Pump();
  }
  void Pump() {
    MutexLock lock(mu_);
    while (!waiting_.empty()) {
      if (!TryWrite(waiting_.front())) return;  // OnIdle comes.
      unread_ -= waiting_.front().ByteSizeLong();
      waiting_.pop_front();
    }
    if (end_ && !ended_) {
      ended_ = true;
      End(call_.End(*end_));
    }
  }
  void OnIdle() override { Pump(); }
  void OnOver(const grpc::Status& /*status*/) override {
    std::unique_ptr<GenerateCall> under_way;
    {
      MutexLock lock(mu_);
      over_ = true;
      ended_ = true;
      waiting_.clear();
      under_way = std::move(under_way_);
    }
    under_way.reset();  // Cancels.
    service_->streams_.Remove(this);
  }

  RouterService* const service_;
  rpc::Call call_;
  Mutex mu_;
  std::deque<v1::GenerateResponse> waiting_ ABSL_GUARDED_BY(mu_);
  size_t unread_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<model::TokenId> tokens_ ABSL_GUARDED_BY(mu_);
  std::string text_ ABSL_GUARDED_BY(mu_);
  ByteShare share_ ABSL_GUARDED_BY(mu_);
  std::optional<Status> end_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<GenerateCall> under_way_ ABSL_GUARDED_BY(mu_);
};

void RouterService::AddTo(rpc::CallServer* server, const rpc::Context* context,
                          Executor* executor) {
  rpc::Method* const generate = context->metrics->Add(kRouterService, "Generate");
  server->Add(generate->path(), [this, context, generate](std::unique_ptr<rpc::RawCall> call,
                                                          const grpc::ByteBuffer& request) {
    auto stream = std::make_shared<GenerateStream>(this, context, generate, std::move(call));
    stream->Open(stream, request);
  });
  // Its answer may wait for an engine: no thread waits with it.
  rpc::AddDeferred<v1::GenerateRequest, v1::PickResponse>(
      server, context, kRouterService, "Pick", executor, [this](auto& call, const auto& request) {
        PickWorker(call.call(), request,
                   [&call](const Status& status, const v1::PickResponse& response) {
                     call.Answer(status, response);
                   });
      });
  rpc::AddUnary<v1::RouterInfoRequest, v1::RouterInfo>(
      server, context, kRouterService, "GetInfo", executor,
      [this](auto&, const auto&, auto* response) { return GetInfo(response); });
}

void RouterService::EndStreams() {
  for (const auto& stream : streams_.All()) stream->Cancel();
}

Status RouterService::CheckTenant(const rpc::Call& call, const GenerateRequest& request) const {
  return call.CheckAllowed(auth::Role::kWriter,
                           request.tenant.empty() ? parts_.tenant : request.tenant);
}

void RouterService::PickWorker(const rpc::Call& call, const v1::GenerateRequest& request,
                               std::function<void(const Status&, const v1::PickResponse&)> done) {
  auto wanted = FromProto(request, parts_.clock->Now(), std::chrono::system_clock::now());
  if (!wanted.ok()) return done(wanted.status(), {});
  if (const Status allowed = CheckTenant(call, *wanted); !allowed.ok()) return done(allowed, {});
  parts_.engine->PickWorker(*std::move(wanted), [done = std::move(done)](Result<Pick> pick) {
    v1::PickResponse response;
    if (pick.ok()) ToProto(*pick, &response);
    done(pick.status(), response);
  });
}

Status RouterService::GetInfo(v1::RouterInfo* response) {
  const std::vector<ServedModel> models = parts_.engine->Models();
  const Dispatcher::Numbers dispatched = parts_.dispatcher->numbers();
  const PrefixIndex::Numbers index = parts_.index->numbers();
  const RouterEngine::Numbers requests = parts_.engine->numbers();
  response->set_version(std::string(config::Version()));
  // Before engines: those that have told it.
  if (!models.empty()) {
    response->set_model(models.front().id);
    response->set_context_tokens(models.front().context_tokens);
  }
  for (size_t i = 1; i < models.size(); ++i) response->add_aliases(models[i].id);
  response->set_policy(std::string(parts_.dispatcher->policy()));
  response->set_waiting(parts_.engine->Waiting());
  response->set_arrivals_per_second(dispatched.arrivals_per_second);
  response->set_use(dispatched.use);
  response->set_index_entries(index.entries);
  response->set_index_bytes(index.bytes);
  response->set_index_members(index.members);
  response->set_requests_active(requests.active);
  response->set_requests_completed(requests.completed);
  response->set_requests_shed(requests.shed);
  response->set_prompt_tokens(requests.prompt_tokens);
  response->set_cached_tokens(requests.cached_tokens);
  response->set_pairing(parts_.engine->pairing());
  response->set_requests_paired(requests.paired);
  std::map<std::string, Dispatcher::WorkerNumbers> numbers;
  for (const auto& worker : dispatched.workers) numbers[worker.worker] = worker;
  const TimePoint now = parts_.clock->Now();
  for (const RegisteredWorker& worker : parts_.registry->Workers()) {
    v1::RouterWorker* const one = response->add_workers();
    one->set_address(worker.address);
    one->set_condition(std::string(Name(worker.condition)));
    one->set_reason(worker.reason);
    if (worker.info != nullptr) {
      one->set_model(worker.info->model);
      one->set_role(std::string(Name(worker.info->role)));
    }
    if (worker.report != nullptr) {
      one->set_cache_node_id(worker.report->cache_node_id);
      ToProto(*worker.report, one->mutable_load());
      one->set_report_age_seconds(Seconds(now - worker.reported_at));
    }
    const auto known = numbers.find(worker.address);
    if (known == numbers.end()) continue;
    one->set_picks(known->second.picks);
    one->set_requests(known->second.followed);
    one->set_queue_seconds(known->second.queue_seconds);
  }
  return OkStatus();
}

}  // namespace cairn::router
