#include <grpcpp/grpcpp.h>

#include <cstring>

#include "cairn/v1/worker.grpc.pb.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/status.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/generator/scorer.h"
#include "tools/cairn/generator/summary_proto.h"

namespace cairn::cli {
namespace {

class RemoteScorer final : public Scorer {
 public:
  RemoteScorer(const std::string& address, const std::shared_ptr<grpc::Channel>& channel)
      : address_(address), stub_(v1::Worker::NewStub(channel)) {}

  Result<std::vector<int32_t>> Tokenize(const std::string& text) override {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_parse_special(true);
    v1::TokenizeResponse response;
    const grpc::Status status = stub_->Tokenize(&context, request, &response);
    if (!status.ok()) return Failure(status);
    return std::vector<int32_t>(response.ids().begin(), response.ids().end());
  }

  Result<worker::GenerateSummary> Score(std::span<const int32_t> context,
                                        std::span<const int32_t> continuation, bool no_cache,
                                        const OnRows& on_rows) override {
    v1::ScoreRequest request;
    request.mutable_context()->mutable_ids()->Add(context.begin(), context.end());
    request.mutable_continuation()->mutable_ids()->Add(continuation.begin(), continuation.end());
    request.set_no_cache(no_cache);
    request.set_prefix_end(static_cast<uint32_t>(context.size()));
    grpc::ClientContext call;
    const auto reader = stub_->Score(&call, request);
    v1::ScoreResponse response;
    worker::GenerateSummary summary;
    bool done = false;
    size_t next = 0;
    std::vector<float> rows;
    while (reader->Read(&response)) {
      if (response.has_done()) {
        summary = SummaryFromProto(response.done());
        done = true;
        continue;
      }
      const v1::ScoreRows& message = response.rows();
      const size_t bytes = message.logits().size();
      if (message.first() != next || message.rows() == 0 ||
          bytes % (message.rows() * sizeof(float)) != 0) {
        call.TryCancel();
        return Errorf(StatusCode::kInternal,
                      "worker at {}: {} bytes of scores for {} rows from {}, expected row {} next",
                      address_, bytes, message.rows(), message.first(), next);
      }
      rows.resize(bytes / sizeof(float));  // Its own memory: the message's is not aligned.
      std::memcpy(rows.data(), message.logits().data(), bytes);
      on_rows(message.first(), message.rows(), rows);
      next += message.rows();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return Failure(status);
    if (!done || next != continuation.size()) {
      return Errorf(StatusCode::kInternal, "worker at {}: scores of {} tokens, expected {}",
                    address_, next, continuation.size());
    }
    return summary;
  }

 private:
  Status Failure(const grpc::Status& status) const {
    return Annotate(rpc::FromGrpc(status), "worker at " + address_);
  }

  const std::string address_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

}  // namespace

Result<std::unique_ptr<Scorer>> ConnectScorer(const std::string& address) {
  CAIRN_ASSIGN_OR_RETURN(const auto channel, client::NewChannel(ConnectionTo(address)));
  return std::make_unique<RemoteScorer>(address, channel);
}

}  // namespace cairn::cli
