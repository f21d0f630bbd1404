#include "protocol/link/grpc_link_calls.h"

#include <pthread.h>

#include <utility>

#include "cairn/v1/link.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "protocol/link/link_convert.h"

namespace cairn::link {
// A call. Deleted when it has ended.
class GrpcLinkCalls::Operation {
 public:
  explicit Operation(TimePoint deadline) { context_.set_deadline(rpc::CallDeadline(deadline)); }
  virtual ~Operation() = default;
  virtual void End() = 0;
  void Cancel() { context_.TryCancel(); }

 protected:
  grpc::ClientContext context_;
  grpc::Status status_;
};

template <typename Response>
class GrpcLinkCalls::Unary final : public Operation {
 public:
  using Done = std::function<void(const Status&, const Response&)>;
  Unary(std::shared_ptr<grpc::Channel> channel, TimePoint deadline, Done done)
      : Operation(deadline), stub_(std::move(channel)), done_(std::move(done)) {}
  template <typename Request, typename Prepare>
  void Start(const Request& request, Prepare prepare, grpc::CompletionQueue* queue) {
    reader_ = (stub_.*prepare)(&context_, request, queue);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<Operation*>(this));
  }
  void End() override { done_(rpc::FromGrpc(status_), response_); }

 private:
  v1::Link::Stub stub_;
  const Done done_;
  Response response_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader_;
};

GrpcLinkCalls::GrpcLinkCalls(std::string self, Channels channels)
    : self_(std::move(self)), channels_(std::move(channels)), poller_([this] { Poll(); }) {}

GrpcLinkCalls::~GrpcLinkCalls() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    for (Operation* const operation : open_) operation->Cancel();
    ended_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_.empty(); });
  }
  queue_.Shutdown();
  poller_.join();
}

template <typename Request, typename Response, typename Prepare, typename Done>
void GrpcLinkCalls::Call(const std::string& peer, const Request& request, TimePoint deadline,
                         Prepare prepare, Done done) {
  const std::shared_ptr<grpc::Channel> channel = channels_(peer);
  if (channel == nullptr) {
    return done(Errorf(StatusCode::kUnavailable, "no way to '{}'", peer), Response());
  }
  auto operation = std::make_unique<Unary<Response>>(channel, deadline, std::move(done));
  {
    MutexLock lock(mu_);
    if (!stopping_) {
      open_.insert(operation.get());
      operation.release()->Start(request, prepare, &queue_);
      return;
    }
  }
  done(Errorf(StatusCode::kCancelled, "the calls are stopped"), Response());
}

void GrpcLinkCalls::Poll() {
  pthread_setname_np(pthread_self(), "cairn-link-rpc");
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    const std::unique_ptr<Operation> operation(static_cast<Operation*>(tag));
    operation->End();
    MutexLock lock(mu_);
    open_.erase(operation.get());
    ended_.NotifyAll();
  }
}

void GrpcLinkCalls::Open(const std::string& peer, const OpenRequest& request, TimePoint deadline,
                         std::function<void(Result<OpenAnswer>)> done) {
  v1::LinkOpenRequest proto;
  ToProto(request, self_, &proto);
  Call<v1::LinkOpenRequest, v1::LinkOpenResponse>(
      peer, proto, deadline, &v1::Link::Stub::PrepareAsyncOpen,
      [done](const Status& status, const v1::LinkOpenResponse& response) {
        done(status.ok() ? FromProto(response) : Result<OpenAnswer>(status));
      });
}

void GrpcLinkCalls::Move(const std::string& peer, const MoveRequest& request, TimePoint deadline,
                         std::function<void(Status)> done) {
  v1::LinkMoveRequest proto;
  ToProto(request, self_, &proto);
  Call<v1::LinkMoveRequest, v1::LinkMoveResponse>(
      peer, proto, deadline, &v1::Link::Stub::PrepareAsyncMove,
      [done](const Status& status, const v1::LinkMoveResponse&) { done(status); });
}

void GrpcLinkCalls::Close(const std::string& peer, uint64_t epoch, TimePoint deadline,
                          std::function<void(Status)> done) {
  v1::LinkCloseRequest proto;
  proto.set_reader(self_);
  proto.set_epoch(epoch);
  Call<v1::LinkCloseRequest, v1::LinkCloseResponse>(
      peer, proto, deadline, &v1::Link::Stub::PrepareAsyncClose,
      [done](const Status& status, const v1::LinkCloseResponse&) { done(status); });
}

}  // namespace cairn::link
