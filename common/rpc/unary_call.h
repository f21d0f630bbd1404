#pragma once
// Methods with one request and one answer.

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/rpc/call.h"
#include "common/rpc/call_server.h"
#include "common/rpc/frames.h"
#include "common/rpc/request_call.h"

namespace cairn::rpc {

template <typename Request, typename Response>
class UnaryCall final : public RequestCall<Request> {
 public:
  using Handler = std::function<Status(Call& call, const Request& request, Response* response)>;

  // Owns itself. The handler runs on `executor`, or on this thread if it is nullptr. All objects
  // pointed to must live as long as the server.
  static void Start(const Context* context, Method* method, Executor* executor,
                    const Handler* handler, std::unique_ptr<RawCall> raw,
                    const grpc::ByteBuffer& request) {
    auto* const call = new UnaryCall(context, method, handler, std::move(raw));
    call->Begin(executor, request);
  }

 private:
  UnaryCall(const Context* context, Method* method, const Handler* handler,
            std::unique_ptr<RawCall> raw)
      : RequestCall<Request>(context, method, std::move(raw)), handler_(handler) {}

  void Run() override {
    Call& call = this->call_;
    Response response;
    const Status status = call.cancelled() ? Gone() : (*handler_)(call, this->request_, &response);
    if (!status.ok()) return this->End(status);
    frame_ = ToFrame(response);
    call.Sent(frame_);
    // A client that does not read its answer must not keep a place.
    call.Leave();
    this->StartWriteAndFinish(&frame_, call.End(status));
  }

  const Handler* const handler_;
  grpc::ByteBuffer frame_;
};

// Adds the method to the server, before it starts. The handler runs on `executor`. nullptr: on the
// poller, for handlers that need neither disk nor long copies. `context` and `executor` must
// outlive the server.
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
