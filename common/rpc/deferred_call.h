#pragma once
// Methods with one request and one answer, which may come later and from another thread.

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

// For handlers that wait for something other than the processor. Between the request and its answer
// the call holds no thread. It keeps its place among the calls under way, so handlers that wait
// need a deadline.
template <typename Request, typename Response>
class DeferredCall final : public RequestCall<Request> {
 public:
  // Answers the call once, before it returns or later. The call lives until then. It runs on
  // `executor`, or on the poller if that is nullptr.
  using Handler = std::function<void(DeferredCall& call, const Request& request)>;

  // Owns itself. All objects pointed to must live as long as the server.
  static void Start(const Context* context, Method* method, Executor* executor,
                    const Handler* handler, std::unique_ptr<RawCall> raw,
                    const grpc::ByteBuffer& request) {
    auto* const call = new DeferredCall(context, method, handler, std::move(raw));
    call->Begin(executor, request);
  }

  Call& call() { return this->call_; }

  // Ends the call; `response` is sent if `status` is OK. Any thread. The call must not be used
  // afterwards.
  void Answer(const Status& status, const Response& response) {
    if (!status.ok()) return this->End(status);
    Call& call = this->call_;
    frame_ = ToFrame(response);
    call.Sent(frame_);
    // A client that does not read its answer must not keep a place.
    call.Leave();
    this->StartWriteAndFinish(&frame_, call.End(status));
  }

 private:
  DeferredCall(const Context* context, Method* method, const Handler* handler,
               std::unique_ptr<RawCall> raw)
      : RequestCall<Request>(context, method, std::move(raw)), handler_(handler) {}

  void Run() override {
    if (this->call_.cancelled()) return this->End(Gone());
    (*handler_)(*this, this->request_);
  }

  const Handler* const handler_;
  grpc::ByteBuffer frame_;
};

// Adds the method to the server, before it starts. As AddUnary.
template <typename Request, typename Response>
void AddDeferred(CallServer* server, const Context* context, std::string_view service,
                 std::string_view name, Executor* executor,
                 typename DeferredCall<Request, Response>::Handler handler) {
  Method* const method = context->metrics->Add(service, name);
  server->Add(method->path(), [=, handler = std::move(handler)](std::unique_ptr<RawCall> call,
                                                                const grpc::ByteBuffer& request) {
    DeferredCall<Request, Response>::Start(context, method, executor, &handler, std::move(call),
                                           request);
  });
}

}  // namespace cairn::rpc
