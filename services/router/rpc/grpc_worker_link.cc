#include "services/router/rpc/grpc_worker_link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <optional>
#include <utility>

#include "cairn/v1/worker.grpc.pb.h"
#include "common/net/credentials.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/trace.h"
#include "services/router/rpc/completion_poller.h"
#include "services/router/rpc/worker_messages.h"

namespace cairn::router {
namespace {

constexpr int kMaxWorkerMessageBytes = 16 << 20;  // As the worker's.

// How a call of a worker ended. The worker's errors about its caller are about this router: callers
// of the router must not take them for a word about themselves.
Status EndOf(const grpc::Status& status) {
  const Status end = rpc::FromGrpc(status);
  switch (end.code()) {
    case StatusCode::kUnauthenticated:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnimplemented:
    case StatusCode::kNotFound:
      return Errorf(StatusCode::kUnavailable, "it does not serve this router: {}", ToString(end));
    default:
      return end;
  }
}

// A call of one request and a stream of answers. It lives until gRPC has ended it: `self_` is the
// queue's share. Operations follow one another, so its state needs no lock.
template <typename Response>
class StreamCall : public WorkerCall, public CompletionTag {
 public:
  using Reader = std::unique_ptr<grpc::ClientAsyncReader<Response>>;

  void Cancel() override { context_.TryCancel(); }

 protected:
  explicit StreamCall(CompletionPoller* poller) : poller_(poller) { poller_->Begin(); }
  ~StreamCall() override { poller_->End(); }

  grpc::ClientContext* context() { return &context_; }
  grpc::CompletionQueue* queue() { return poller_->queue(); }
  // Nothing may be done after this: the answer may come on another thread.
  void Start(std::shared_ptr<StreamCall> self, Reader reader) {
    self_ = std::move(self);
    reader_ = std::move(reader);
    reader_->StartCall(static_cast<CompletionTag*>(this));
  }
  virtual void OnMessage(const Response& message) = 0;
  virtual void OnFinished(const Status& status) = 0;

 private:
  enum class State { kStarting, kReading, kFinishing };

  void Proceed(bool ok) override {
    if (state_ == State::kFinishing) {
      OnFinished(EndOf(status_));
      const auto last = std::move(self_);  // Its end is that of this object.
      return;
    }
    if (ok && state_ == State::kReading) OnMessage(message_);
    if (ok) {
      state_ = State::kReading;
      reader_->Read(&message_, static_cast<CompletionTag*>(this));
    } else {
      state_ = State::kFinishing;
      reader_->Finish(&status_, static_cast<CompletionTag*>(this));
    }
  }

  CompletionPoller* const poller_;
  grpc::ClientContext context_;
  Reader reader_;
  State state_ = State::kStarting;
  Response message_;
  grpc::Status status_;
  std::shared_ptr<StreamCall> self_;
};

class AnswerCall final : public StreamCall<v1::GenerateResponse> {
 public:
  AnswerCall(CompletionPoller* poller, std::shared_ptr<WorkerAnswerObserver> observer)
      : StreamCall(poller), observer_(std::move(observer)) {}

  static std::shared_ptr<WorkerCall> Begin(v1::Worker::Stub* stub, CompletionPoller* poller,
                                           const WorkerRequest& request,
                                           std::shared_ptr<WorkerAnswerObserver> observer) {
    auto call = std::make_shared<AnswerCall>(poller, std::move(observer));
    v1::GenerateRequest message;
    ToProto(request, SteadyClock::Get().Now(), std::chrono::system_clock::now(), &message);
    if (rpc::IsTrace(request.trace)) {
      call->context()->AddMetadata(rpc::kTraceMetadata, request.trace);
    }
    call->Start(call, stub->PrepareAsyncGenerate(call->context(), message, call->queue()));
    return call;
  }

 private:
  void OnMessage(const v1::GenerateResponse& message) override {
    if (observer_ == nullptr) return;
    if (message.has_token()) {
      observer_->OnToken(message.token().id(), message.token().text());
    } else if (message.has_announced()) {
      observer_->OnAnnounced();
    } else if (message.has_done()) {
      std::exchange(observer_, nullptr)->OnDone(FromProto(message.done()));
    }
  }
  void OnFinished(const Status& status) override {
    if (observer_ == nullptr) return;
    if (status.code() == StatusCode::kUnavailable && !WasSent()) {
      return std::exchange(observer_, nullptr)->OnUnreached(status);
    }
    std::exchange(observer_, nullptr)
        ->OnError(status.ok() ? Errorf(StatusCode::kInternal, "the answer has no summary")
                              : status);
  }
  // Until a connection takes a call, its peer is the name that the channel was made for.
  bool WasSent() {
    const std::string peer = context()->peer();
    return peer.starts_with("ipv4:") || peer.starts_with("ipv6:") || peer.starts_with("unix:");
  }

  std::shared_ptr<WorkerAnswerObserver> observer_;
};

class LoadCall final : public StreamCall<v1::LoadReport> {
 public:
  LoadCall(CompletionPoller* poller, std::shared_ptr<WorkerWatchObserver> observer)
      : StreamCall(poller), observer_(std::move(observer)) {}

  static std::shared_ptr<WorkerCall> Begin(v1::Worker::Stub* stub, CompletionPoller* poller,
                                           std::shared_ptr<WorkerWatchObserver> observer) {
    auto call = std::make_shared<LoadCall>(poller, std::move(observer));
    call->Start(
        call, stub->PrepareAsyncWatchLoad(call->context(), v1::WatchLoadRequest(), call->queue()));
    return call;
  }

 private:
  void OnMessage(const v1::LoadReport& message) override {
    observer_->OnReport(FromProto(message));
  }
  void OnFinished(const Status& status) override {
    std::exchange(observer_, nullptr)->OnEnd(status);
  }

  std::shared_ptr<WorkerWatchObserver> observer_;
};

// Asks what the worker is, and then for its load.
class WatchCall final : public WorkerCall, public CompletionTag {
 public:
  WatchCall(std::shared_ptr<v1::Worker::Stub> stub, CompletionPoller* poller,
            std::shared_ptr<WorkerWatchObserver> observer)
      : stub_(std::move(stub)), poller_(poller), observer_(std::move(observer)) {
    poller_->Begin();
  }
  ~WatchCall() override { poller_->End(); }

  static std::shared_ptr<WorkerCall> Begin(std::shared_ptr<v1::Worker::Stub> stub,
                                           CompletionPoller* poller,
                                           std::shared_ptr<WorkerWatchObserver> observer) {
    auto call = std::make_shared<WatchCall>(std::move(stub), poller, std::move(observer));
    call->self_ = call;
    // Also the time that one attempt to connect may take.
    call->context_.set_deadline(
        rpc::CallDeadline(SteadyClock::Get().Now() + std::chrono::seconds(5)));
    call->reader_ =
        call->stub_->PrepareAsyncGetInfo(&call->context_, v1::WorkerInfoRequest(), poller->queue());
    call->reader_->StartCall();
    call->reader_->Finish(&call->info_, &call->status_, static_cast<CompletionTag*>(call.get()));
    return call;
  }

  void Cancel() override {
    context_.TryCancel();
    std::shared_ptr<WorkerCall> loads;
    {
      MutexLock lock(mu_);
      cancelled_ = true;
      loads = loads_;
    }
    if (loads != nullptr) loads->Cancel();
  }

 private:
  void Proceed(bool /*ok*/) override {
    const auto self = std::move(self_);
    if (!status_.ok()) return observer_->OnEnd(EndOf(status_));
    observer_->OnInfo(FromProto(info_));
    auto loads = LoadCall::Begin(stub_.get(), poller_, std::move(observer_));
    bool cancel = false;
    {
      MutexLock lock(mu_);
      loads_ = loads;
      cancel = cancelled_;
    }
    if (cancel) loads->Cancel();
  }

  const std::shared_ptr<v1::Worker::Stub> stub_;
  CompletionPoller* const poller_;
  std::shared_ptr<WorkerWatchObserver> observer_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::WorkerInfo>> reader_;
  v1::WorkerInfo info_;
  grpc::Status status_;
  std::shared_ptr<WatchCall> self_;  // The queue's share.
  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<WorkerCall> loads_ ABSL_GUARDED_BY(mu_);
};

class GrpcWorkerLink final : public WorkerLink {
 public:
  GrpcWorkerLink(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
                 const std::string& server_name, CompletionPoller* poller)
      : poller_(poller) {
    grpc::ChannelArguments args = rpc::ChannelArguments(kMaxWorkerMessageBytes);
    if (!server_name.empty()) args.SetSslTargetNameOverride(server_name);
    const auto channel = grpc::CreateCustomChannel(address, credentials, args);
    stub_ = v1::Worker::NewStub(channel);
    reconnect_.emplace(channel);
  }

  std::shared_ptr<WorkerCall> Generate(const WorkerRequest& request,
                                       std::shared_ptr<WorkerAnswerObserver> observer) override {
    return AnswerCall::Begin(stub_.get(), poller_, request, std::move(observer));
  }
  std::shared_ptr<WorkerCall> Watch(std::shared_ptr<WorkerWatchObserver> observer) override {
    // The registry's pauses between watches are those between attempts to connect.
    reconnect_->BeforeCall(SteadyClock::Get().Now());
    return WatchCall::Begin(stub_, poller_, std::move(observer));
  }

 private:
  CompletionPoller* const poller_;
  std::shared_ptr<v1::Worker::Stub> stub_;
  std::optional<rpc::Reconnect> reconnect_;
};

}  // namespace

Result<MakeWorkerLink> GrpcWorkerLinks(const WorkerLinkTls& tls, CompletionPoller* poller) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls.certificate.empty() != tls.private_key.empty()) {
    return InvalidArgument("workers_tls.cert and workers_tls.key: got one, expected both or none");
  }
  if (!tls.authorities.empty() || !tls.certificate.empty()) {
    credentials = net::MakeChannelCredentials({.authorities = tls.authorities,
                                               .certificate = tls.certificate,
                                               .private_key = tls.private_key});
  }
  return MakeWorkerLink([credentials, name = tls.server_name, poller](const std::string& address) {
    return std::make_unique<GrpcWorkerLink>(address, credentials, name, poller);
  });
}

}  // namespace cairn::router
