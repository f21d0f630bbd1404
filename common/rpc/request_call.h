#pragma once
// The steps that all calls with one request have in common: a call is admitted, decoded, and handed
// to its handler.

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"

namespace cairn::rpc {

// Owns itself from Begin until gRPC is done with it. One thread at a time drives it.
template <typename Request>
class RequestCall : public CallReactor {
 protected:
  RequestCall(const Context* context, Method* method, std::unique_ptr<RawCall> raw)
      : CallReactor(std::move(raw)), call_(context, method, &this->context()) {}

  // Calls Run on `executor`, or here if that is nullptr; ends the call if it is refused.
  void Begin(Executor* executor, const grpc::ByteBuffer& request) {
    if (const Status admitted = Admit(request); !admitted.ok()) return End(admitted);
    if (executor == nullptr) return Run();
    if (const Status posted = executor->Post([this] { Run(); }); !posted.ok()) {
      call_.Rejected(Rejection::kOverload);
      End(posted);
    }
  }
  // Ends the call without a further message.
  void End(const Status& status) {
    call_.Leave();
    Finish(call_.End(status));
  }

  Call call_;
  Request request_;

 private:
  // Works on the request, and ends the call.
  virtual void Run() = 0;

  Status Admit(const grpc::ByteBuffer& request) {
    call_.Received(request);
    CAIRN_RETURN_IF_ERROR(call_.Admit());
    return call_.Decode(request, &request_);
  }
  void OnDone() final { delete this; }
};

}  // namespace cairn::rpc
