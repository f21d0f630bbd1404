#include "common/rpc/health_service.h"

#include <algorithm>
#include <utility>

#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "common/rpc/frames.h"
#include "common/rpc/pushed_stream.h"
#include "common/rpc/status.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace cairn::rpc {
namespace {

namespace health = ::grpc::health::v1;
using Answer = health::HealthCheckResponse;

Answer::ServingStatus StatusOf(const Context& context) {
  return context.draining.load(std::memory_order_relaxed) ? Answer::NOT_SERVING : Answer::SERVING;
}

class HealthCheck final : public CallReactor {
 public:
  HealthCheck(std::unique_ptr<RawCall> call, const Status& refused, Answer::ServingStatus state)
      : CallReactor(std::move(call)) {
    if (!refused.ok()) {
      Finish(ToGrpc(refused));
      return;
    }
    Answer answer;
    answer.set_status(state);
    frame_ = ToFrame(answer);
    StartWriteAndFinish(&frame_, grpc::Status());
  }

 private:
  void OnDone() override { delete this; }

  grpc::ByteBuffer frame_;
};

}  // namespace

class HealthWatch final : public PushedStream {
 public:
  HealthWatch(const Context* context, StreamSet<HealthWatch>* set, std::unique_ptr<RawCall> call,
              bool known)
      : PushedStream(std::move(call)), context_(context), set_(set), known_(known) {}

  // RESOURCE_EXHAUSTED: there are too many, in all or of this connection.
  Status TakePlace(Gate* places) {
    Gate::Refusal refusal = Gate::Refusal::kNone;
    place_ = places->Enter(this->context().peer(), &refusal);
    if (refusal == Gate::Refusal::kNone) return OkStatus();
    if (context_->metrics != nullptr) context_->metrics->Rejected(Rejection::kOverload);
    return Errorf(StatusCode::kResourceExhausted,
                  "the {} has {} watches of its health open, or this connection its share of them",
                  context_->process, places->inside());
  }

  void Tick() {
    const int now = known_ ? StatusOf(*context_) : Answer::SERVICE_UNKNOWN;
    if (now == told_.load(std::memory_order_relaxed)) return;
    Answer answer;
    answer.set_status(static_cast<Answer::ServingStatus>(now));
    // Else the next tick tries again.
    if (TryWrite(answer)) told_.store(now, std::memory_order_relaxed);
  }

 private:
  void OnOver(const grpc::Status& /*status*/) override { set_->Remove(this); }

  const Context* const context_;
  StreamSet<HealthWatch>* const set_;
  const bool known_;
  Gate::Pass place_;
  std::atomic<int> told_{-1};
};

HealthService::HealthService(const Context* context, std::vector<std::string> services)
    : context_(context), services_(std::move(services)) {}

bool HealthService::Knows(const std::string& service) const {
  return service.empty() ||
         std::find(services_.begin(), services_.end(), service) != services_.end();
}

void HealthService::AddTo(CallServer* server) {
  const std::string path = std::string("/") + health::Health::service_full_name();
  server->Add(path + "/Check", [this](std::unique_ptr<RawCall> call, const auto& frame) {
    health::HealthCheckRequest request;
    Status refused = Decode(frame, &request);
    if (refused.ok() && !Knows(request.service())) {
      refused = Errorf(StatusCode::kNotFound, "no service '{}'", request.service());
    }
    new HealthCheck(std::move(call), refused, StatusOf(*context_));
  });
  server->Add(path + "/Watch", [this](std::unique_ptr<RawCall> call, const auto& frame) {
    health::HealthCheckRequest request;
    const Status decoded = Decode(frame, &request);
    auto watch = std::make_shared<HealthWatch>(context_, &watches_, std::move(call),
                                               Knows(request.service()));
    watch->Start(watch);
    if (!decoded.ok()) return watch->End(ToGrpc(decoded));
    if (const Status placed = watch->TakePlace(&places_); !placed.ok()) {
      return watch->End(ToGrpc(placed));
    }
    watches_.Add(watch);
    watch->Tick();
    // A client may come back at once, and would be waited for.
    if (ended_.load()) EndStreams();
  });
}

void HealthService::Tick() {
  for (const auto& watch : watches_.All()) watch->Tick();
}

void HealthService::EndStreams() {
  ended_.store(true);
  const grpc::Status status = ToGrpc(ShuttingDown(*context_));
  for (const auto& watch : watches_.All()) watch->End(status);
}

}  // namespace cairn::rpc
