#include <grpcpp/grpcpp.h>

#include "cairn/v1/worker.grpc.pb.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "protocol/wire/request_deadline.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/generator/generator.h"
#include "tools/cairn/generator/summary_proto.h"

namespace cairn::cli {
namespace {

constexpr std::chrono::milliseconds kCancelPoll(
    20);                                             // Between looks at whether the caller cancels.
constexpr std::chrono::seconds kConnectDeadline(5);  // For short calls.

v1::GenerateRequest ToProto(const worker::GenerateRequest& request) {
  v1::GenerateRequest proto;
  if (const auto* chat = std::get_if<worker::ChatPrompt>(&request.prompt)) {
    for (const model::ChatMessage& message : chat->messages) {
      v1::ChatMessage& m = *proto.mutable_chat()->add_messages();
      m.set_role(message.role);
      m.set_content(message.content);
    }
    proto.mutable_chat();  // An empty list is refused as such by the worker.
  } else if (const auto* raw = std::get_if<worker::RawPrompt>(&request.prompt)) {
    proto.set_raw_text(raw->text);
  } else {
    const auto& ids = std::get<worker::TokenPrompt>(request.prompt).ids;
    proto.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  }
  proto.set_max_tokens(request.max_tokens);
  proto.set_temperature(static_cast<double>(request.sampling.temperature));
  proto.set_top_k(static_cast<uint32_t>(request.sampling.top_k));
  proto.set_top_p(static_cast<double>(request.sampling.top_p));
  proto.set_seed(request.sampling.seed);
  proto.set_no_cache(request.no_cache);
  proto.set_ignore_eos(request.ignore_eos);
  proto.set_want_logits_digest(request.want_logits_digest);
  proto.set_keep_turn(request.keep_turn);
  proto.set_want_timeline(request.want_timeline);
  proto.set_prefix_end(request.prefix_end);
  proto.mutable_stop()->Add(request.stop.begin(), request.stop.end());
  proto.set_prefill_only(request.prefill_only);
  proto.set_drop_oldest(request.drop_oldest);
  proto.set_await_prefill_ms(static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(request.await_prefill).count()));
  proto.set_priority(request.priority);
  proto.set_tenant(request.tenant);
  if (request.deadline) {
    wire::SetDeadline(*request.deadline, SteadyClock::Get().Now(), std::chrono::system_clock::now(),
                      &proto);
  }
  proto.set_next(static_cast<v1::NextUse>(request.next));
  return proto;
}

class RemoteWorker final : public Generator {
 public:
  RemoteWorker(const std::string& address, const std::shared_ptr<grpc::Channel>& channel)
      : address_(address), stub_(v1::Worker::NewStub(channel)) {}

  Result<worker::GenerateSummary> Generate(const worker::GenerateRequest& request,
                                           const worker::GenerateCallbacks& callbacks) override {
    Call call(callbacks.cancelled);
    call.context.set_wait_for_ready(false);
    const auto reader = stub_->AsyncGenerate(&call.context, ToProto(request), &call.queue, nullptr);
    worker::GenerateSummary summary;
    bool have_summary = false;
    bool open = call.Wait();
    while (open) {
      v1::GenerateResponse response;
      reader->Read(&response, nullptr);
      open = call.Wait();
      if (!open) break;
      if (response.has_done()) {
        summary = SummaryFromProto(response.done());
        have_summary = true;
      } else if (response.has_announced()) {
        if (callbacks.on_announced && !callbacks.on_announced()) call.Cancel();
      } else if (response.has_token() && callbacks.on_token &&
                 !callbacks.on_token(response.token().id(), response.token().text())) {
        call.Cancel();
      }
    }
    grpc::Status status;
    reader->Finish(&status, nullptr);
    call.Wait();
    if (have_summary) return summary;
    if (call.cancelled) {
      summary.finish_reason = "cancelled";
      return summary;
    }
    return Failure(status);
  }

  Status WaitIdle(std::chrono::milliseconds timeout) override {
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(SteadyClock::Get().Now() + timeout + kConnectDeadline));
    v1::WaitIdleRequest request;
    request.set_timeout_ms(static_cast<uint32_t>(timeout.count()));
    v1::WaitIdleResponse response;
    const grpc::Status status = stub_->WaitIdle(&context, request, &response);
    if (!status.ok()) return Failure(status);
    if (response.idle()) return OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded,
                  "worker at {}: background work was not done after {} ms", address_,
                  timeout.count());
  }

  Result<Info> GetInfo() override {
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(SteadyClock::Get().Now() + kConnectDeadline));
    v1::WorkerInfo info;
    const grpc::Status status = stub_->GetInfo(&context, v1::WorkerInfoRequest(), &info);
    if (!status.ok()) return Failure(status);
    return Info{.model = info.model(),
                .weights_digest = info.weights_digest(),
                .numerics = info.numerics(),
                .context_tokens = info.context_tokens(),
                .cache_address = info.cache_address(),
                .cache_connected = info.cache_connected(),
                .fingerprint = info.fingerprint()};
  }

 private:
  // One streamed call whose waits look after the caller's wish to cancel.
  struct Call {
    explicit Call(std::function<bool()> want_cancel) : want_cancel_(std::move(want_cancel)) {}
    ~Call() {
      queue.Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue.Next(&tag, &ok)) {
      }
    }
    // For the one operation under way; whether it succeeded.
    bool Wait() {
      void* tag = nullptr;
      bool ok = false;
      while (
          queue.AsyncNext(&tag, &ok, rpc::CallDeadline(SteadyClock::Get().Now() + kCancelPoll)) ==
          grpc::CompletionQueue::TIMEOUT) {
        if (want_cancel_ && want_cancel_()) Cancel();
      }
      return ok;
    }
    void Cancel() {
      cancelled = true;
      context.TryCancel();
    }
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    bool cancelled = false;

   private:
    std::function<bool()> want_cancel_;
  };

  Status Failure(const grpc::Status& status) const {
    return Annotate(rpc::FromGrpc(status), "worker at " + address_);
  }

  const std::string address_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

}  // namespace

Result<std::unique_ptr<Generator>> ConnectWorker(const std::string& address, const TlsFlags& tls) {
  CAIRN_ASSIGN_OR_RETURN(const auto channel, client::NewChannel(ConnectionTo(address, tls)));
  return std::make_unique<RemoteWorker>(address, channel);
}

}  // namespace cairn::cli
