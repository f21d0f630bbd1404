#pragma once
// One stream of Envoy's ExternalProcessor.Process: messages in, an exchange's answers out.

#include <grpcpp/support/byte_buffer.h>

#include <deque>
#include <memory>

#include "common/rpc/call.h"
#include "common/rpc/call_reactor.h"
#include "common/rpc/stream_set.h"
#include "services/router/picker/exchange.h"

namespace cairn::router {

// Owns itself from Start until gRPC is done with it. It reads, or works on what it read, or writes
// the answers, one at a time; so a gateway that does not read answers is not read from.
class ProcessStream final : public rpc::CallReactor {
 public:
  // All that is pointed to must outlive the server.
  static void Start(const Exchange::Parts& parts, const rpc::Context* context, rpc::Method* method,
                    std::unique_ptr<rpc::RawCall> call);
  ProcessStream(const Exchange::Parts& parts, const rpc::Context* context, rpc::Method* method,
                std::unique_ptr<rpc::RawCall> call);
  ~ProcessStream() override;

 private:
  void Go(Exchange::Step step);
  void WriteNext();
  void EndCall(const Status& status);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { exchange_->End(); }
  void OnDone() override { const std::shared_ptr<ProcessStream> self = std::move(self_); }

  PickerCounters* const counters_;
  rpc::Call call_;
  const std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<ProcessStream> self_;
  // These belong to whatever is under way: a read, the exchange's work, a write.
  grpc::ByteBuffer frame_;
  std::deque<Reply> replies_;
  bool over_ = false;  // It ends after the replies, with `status_`.
  Status status_;
};

}  // namespace cairn::router
