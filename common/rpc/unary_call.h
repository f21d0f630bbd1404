#pragma once
// Methods with one request and one answer.

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "common/rpc/call_server.h"
#include "common/rpc/frames.h"

namespace cairn::rpc {

// Admits the call, runs the handler, and ends the call. One thread at a time drives it.
template <typename Request, typename Response>
class UnaryCall final : public CallReactor {
 public:
  using Handler = std::function<Status(Call& call, const Request& request, Response* response)>;

  // Owns itself. The handler runs on `executor`; nullptr: here. What is pointed to lives as long as
  // the server.
  static void Start(const Context* context, Method* method, Executor* executor,
                    const Handler* handler, std::unique_ptr<RawCall> raw,
                    const grpc::ByteBuffer& request) {
    auto* const call = new UnaryCall(context, method, handler, std::move(raw));
    if (const Status begun = call->Begin(request); !begun.ok()) return call->End(begun);
    if (executor == nullptr) return call->Run();
    if (const Status posted = executor->Post([call] { call->Run(); }); !posted.ok()) {
      call->call_.Rejected(Rejection::kOverload);
      call->End(posted);
    }
  }

 private:
  UnaryCall(const Context* context, Method* method, const Handler* handler,
            std::unique_ptr<RawCall> raw)
      : CallReactor(std::move(raw)), call_(context, method, &this->context()), handler_(handler) {}

  Status Begin(const grpc::ByteBuffer& request) {
    call_.Received(request);
    CAIRN_RETURN_IF_ERROR(call_.Admit());
    return Decode(request, &request_);
  }
  void Run() {
    Response response;
    const Status status = call_.cancelled() ? Gone() : (*handler_)(call_, request_, &response);
    if (!status.ok()) return End(status);
    frame_ = ToFrame(response);
    call_.Sent(frame_);
    // A client that does not read its answer keeps no place.
    call_.Leave();
    StartWriteAndFinish(&frame_, call_.End(status));
  }
  void End(const Status& status) {
    call_.Leave();
    Finish(call_.End(status));
  }
  void OnDone() override { delete this; }

  Call call_;
  const Handler* const handler_;
  Request request_;
  grpc::ByteBuffer frame_;
};

// Adds the method to the server, before it starts. The handler runs on `executor`; nullptr: on the
// poller, for what needs neither disk nor long copies. `context` and `executor` must outlive the
// server.
template <typename Request, typename Response>
void AddUnary(CallServer* server, const Context* context, std::string_view service,
              std::string_view name, Executor* executor,
              typename UnaryCall<Request, Response>::Handler handler) {
  Method* const method = context->metrics->Add(service, name);
  server->Add(method->path(), [=, handler = std::move(handler)](std::unique_ptr<RawCall> call,
                                                                const grpc::ByteBuffer& request) {
    UnaryCall<Request, Response>::Start(context, method, executor, &handler, std::move(call),
                                        request);
  });
}

}  // namespace cairn::rpc
