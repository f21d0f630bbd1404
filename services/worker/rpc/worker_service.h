#pragma once
// The Worker service of proto/cairn/v1/worker.proto over a WorkerEngine: decode, call, encode.

#include <memory>

#include "cairn/v1/worker.grpc.pb.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/rpc/worker_metrics.h"

namespace cairn::worker {

// The request in plain C++. INVALID_ARGUMENT naming field, value and what was expected, for what
// the plain form cannot hold; WorkerEngine::Generate checks the rest.
Result<GenerateRequest> FromProto(const v1::GenerateRequest& proto);
void ToProto(const GenerateSummary& summary, v1::GenerateSummary* out);

// A handler waits on its own thread while its request waits and runs: the number of threads is
// bounded by the server (server.h), the number of waiting requests by the engine's queue.
class WorkerService final : public v1::Worker::Service {
 public:
  // Both must outlive the service.
  WorkerService(WorkerEngine& engine, const WorkerMetrics& metrics)
      : engine_(engine), metrics_(metrics) {}

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     grpc::ServerWriter<v1::ScoreResponse>* writer) override;
  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status GetInfo(grpc::ServerContext* context, const v1::WorkerInfoRequest* request,
                       v1::WorkerInfo* response) override;
  grpc::Status WaitIdle(grpc::ServerContext* context, const v1::WaitIdleRequest* request,
                        v1::WaitIdleResponse* response) override;

 private:
  WorkerEngine& engine_;
  const WorkerMetrics& metrics_;
};

}  // namespace cairn::worker
