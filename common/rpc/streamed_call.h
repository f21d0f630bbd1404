#pragma once
// Methods with one request and a stream of answers, which a handler writes as it makes them.

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/rpc/call.h"
#include "common/rpc/call_server.h"
#include "common/rpc/frames.h"
#include "common/rpc/request_call.h"

namespace cairn::rpc {

// For handlers that work for long and need a thread anyway, such as those of a worker. The
// executor's threads bound how many of them run. A stream that only waits for events belongs into
// a PushedStream, which holds no thread.
template <typename Request, typename Response>
class StreamedCall final : public RequestCall<Request> {
 public:
  // Sends a message and waits until gRPC has taken it: a client that reads slowly slows the handler
  // down. False: the client is gone, and nothing more can be sent. One thread at a time; not after
  // the handler has returned.
  using Write = std::function<bool(const Response& message)>;
  using Handler = std::function<Status(Call& call, const Request& request, const Write& write)>;

  // Owns itself. The handler runs on `executor`, never on a poller, which would wait for itself.
  // All that is pointed to must live as long as the server.
  static void Start(const Context* context, Method* method, Executor* executor,
                    const Handler* handler, std::unique_ptr<RawCall> raw,
                    const grpc::ByteBuffer& request) {
    auto* const call = new StreamedCall(context, method, handler, std::move(raw));
    call->Begin(executor, request);
  }

 private:
  StreamedCall(const Context* context, Method* method, const Handler* handler,
               std::unique_ptr<RawCall> raw)
      : RequestCall<Request>(context, method, std::move(raw)), handler_(handler) {}

  void Run() override {
    const Write write = [this](const Response& message) { return Send(message); };
    this->End(this->call_.cancelled() ? Gone() : (*handler_)(this->call_, this->request_, write));
  }
  bool Send(const Response& message) {
    {
      MutexLock lock(mu_);
      if (!readable_) return false;
      writing_ = true;
    }
    frame_ = ToFrame(message);
    this->call_.Sent(frame_);
    this->StartWrite(&frame_);
    MutexLock lock(mu_);
    written_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !writing_; });
    return readable_;
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    writing_ = false;
    readable_ = ok;
    written_.NotifyAll();
  }

  const Handler* const handler_;
  grpc::ByteBuffer frame_;  // Belongs to gRPC while writing_.
  Mutex mu_;
  CondVar written_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool readable_ ABSL_GUARDED_BY(mu_) = true;
};

// Adds the method to the server, before it starts. `context` and `executor` must outlive the
// server; `executor` runs the handlers on threads of its own.
template <typename Request, typename Response>
void AddStreamed(CallServer* server, const Context* context, std::string_view service,
                 std::string_view name, Executor* executor,
                 typename StreamedCall<Request, Response>::Handler handler) {
  Method* const method = context->metrics->Add(service, name);
  server->Add(method->path(), [=, handler = std::move(handler)](std::unique_ptr<RawCall> call,
                                                                const grpc::ByteBuffer& request) {
    StreamedCall<Request, Response>::Start(context, method, executor, &handler, std::move(call),
                                           request);
  });
}

}  // namespace cairn::rpc
