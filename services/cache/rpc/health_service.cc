#include "services/cache/rpc/health_service.h"

#include <atomic>
#include <utility>

#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "services/cache/rpc/pushed_stream.h"

namespace cairn::cache {
namespace {

namespace health = ::grpc::health::v1;
using Answer = health::HealthCheckResponse;

bool Known(const std::string& service) {
  return service.empty() || service == v1::Cache::service_full_name() ||
         service == v1::Admin::service_full_name();
}

Answer::ServingStatus StatusOf(const RpcContext& rpc) {
  return rpc.draining.load(std::memory_order_relaxed) ? Answer::NOT_SERVING : Answer::SERVING;
}

class HealthCheck final : public CallReactor {
 public:
  HealthCheck(const RpcContext& rpc, std::unique_ptr<RawCall> call, const grpc::ByteBuffer& request)
      : CallReactor(std::move(call)) {
    if (const Status status = Fill(rpc, request); status.ok()) {
      StartWriteAndFinish(&frame_, grpc::Status());
    } else {
      Finish(wire::ToGrpc(status));
    }
  }

 private:
  Status Fill(const RpcContext& rpc, const grpc::ByteBuffer& frame) {
    health::HealthCheckRequest request;
    CAIRN_RETURN_IF_ERROR(Decode(frame, &request));
    if (!Known(request.service()))
      return Errorf(StatusCode::kNotFound, "no service '{}'", request.service());
    Answer answer;
    answer.set_status(StatusOf(rpc));
    frame_ = wire::ToFrame(answer);
    return OkStatus();
  }
  void OnDone() override { delete this; }

  grpc::ByteBuffer frame_;
};

}  // namespace

// Unbounded in number as sessions are: who may connect may hold streams open.
class HealthWatch final : public PushedStream {
 public:
  static void Open(const RpcContext* rpc, StreamSet<HealthWatch>* set,
                   std::unique_ptr<RawCall> call, const grpc::ByteBuffer& frame) {
    health::HealthCheckRequest request;
    const Status decoded = Decode(frame, &request);
    auto watch = std::make_shared<HealthWatch>(rpc, set, std::move(call), Known(request.service()));
    watch->Start(watch);
    if (!decoded.ok()) return watch->End(wire::ToGrpc(decoded));
    set->Add(watch);
    watch->Tick();
  }
  HealthWatch(const RpcContext* rpc, StreamSet<HealthWatch>* set, std::unique_ptr<RawCall> call,
              bool known)
      : PushedStream(std::move(call)), rpc_(rpc), set_(set), known_(known) {}

  void Tick() {
    const int now = known_ ? StatusOf(*rpc_) : Answer::SERVICE_UNKNOWN;
    if (now == told_.load(std::memory_order_relaxed)) return;
    Answer answer;
    answer.set_status(static_cast<Answer::ServingStatus>(now));
    if (TryWrite(answer))
      told_.store(now, std::memory_order_relaxed);  // Else the next tick tries again.
  }

 private:
  void OnOver(const grpc::Status& /*status*/) override { set_->Remove(this); }

  const RpcContext* const rpc_;
  StreamSet<HealthWatch>* const set_;
  const bool known_;
  std::atomic<int> told_{-1};
};

void HealthService::AddTo(CallServer* server) {
  const std::string path = std::string("/") + health::Health::service_full_name();
  server->Add(path + "/Check", [this](std::unique_ptr<RawCall> call, const auto& request) {
    new HealthCheck(*rpc_, std::move(call), request);
  });
  server->Add(path + "/Watch", [this](std::unique_ptr<RawCall> call, const auto& request) {
    HealthWatch::Open(rpc_, &watches_, std::move(call), request);
    // A client may come back at once, and would be waited for.
    if (ended_.load()) EndStreams();
  });
}

void HealthService::Tick() {
  for (const auto& watch : watches_.All()) watch->Tick();
}

void HealthService::EndStreams() {
  ended_.store(true);
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "the node is shutting down");
  for (const auto& watch : watches_.All()) watch->End(status);
}

}  // namespace cairn::cache
