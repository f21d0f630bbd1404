#pragma once
// The Worker service of proto/cairn/v1/worker.proto over a WorkerEngine: decode, call, encode.

#include <chrono>
#include <memory>

#include "cairn/v1/worker.pb.h"
#include "common/concurrency/executor.h"
#include "common/rpc/call_server.h"
#include "common/rpc/context.h"
#include "common/rpc/streamed_call.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/rpc/worker_metrics.h"

namespace cairn::worker {

// The request in plain C++. INVALID_ARGUMENT naming field, value and what was expected, for what
// the plain form cannot hold; WorkerEngine::Generate checks the rest.
// `now`: on the clock of the engine, and of the wall.
Result<GenerateRequest> FromProto(const v1::GenerateRequest& proto, TimePoint now,
                                  std::chrono::system_clock::time_point wall);
void ToProto(const GenerateSummary& summary, v1::GenerateSummary* out);

inline constexpr char kWorkerService[] = "cairn.v1.Worker";

// Thread-safe.
class WorkerService {
 public:
  // Where methods run. Both must outlive the server.
  struct Executors {
    Executor* requests;  // A thread for each request that waits or runs, and for short calls.
    Executor* waits;     // Calls that wait until the engine is idle.
    Executor* tokenize;  // Tokenize: up to a message's size of text, which takes a processor.
  };

  // `engine` and `metrics` must outlive the service. `tenant`: of requests that name none.
  WorkerService(WorkerEngine& engine, const WorkerMetrics& metrics, std::string tenant)
      : engine_(engine), metrics_(metrics), tenant_(std::move(tenant)) {}
  // Before the server starts. The service and `context` must outlive it.
  void AddTo(rpc::CallServer* server, const rpc::Context* context, const Executors& executors);

 private:
  using WriteGenerate = rpc::StreamedCall<v1::GenerateRequest, v1::GenerateResponse>::Write;
  using WriteScore = rpc::StreamedCall<v1::ScoreRequest, v1::ScoreResponse>::Write;

  Status Generate(rpc::Call& call, const v1::GenerateRequest& request, const WriteGenerate& write);
  Status Score(rpc::Call& call, const v1::ScoreRequest& request, const WriteScore& write);
  Status Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
  Status GetInfo(v1::WorkerInfo* response);
  Status WaitIdle(rpc::Call& call, const v1::WaitIdleRequest& request,
                  v1::WaitIdleResponse* response);

  WorkerEngine& engine_;
  const WorkerMetrics& metrics_;
  const std::string tenant_;
};

}  // namespace cairn::worker
