#pragma once
// The streams of WatchLoad: what the worker has to do, told again and again.

#include <atomic>
#include <memory>

#include "cairn/v1/worker.pb.h"
#include "common/rpc/call_server.h"
#include "common/rpc/context.h"
#include "common/rpc/stream_set.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

void ToProto(const WorkerEngine::Load& load, v1::LoadReport* out);

class LoadStream;

// Thread-safe. Holds no thread: somebody calls Tick.
class LoadReports {
 public:
  // Streams that may be open. More are refused: routers are few.
  static constexpr size_t kMaxStreams = 64;
  // How often Tick should be called: half of the usual interval, so that a report is never late.
  static constexpr Duration kTick = std::chrono::milliseconds(50);

  // Both must outlive the server.
  LoadReports(const WorkerEngine& engine, const rpc::Context* context)
      : engine_(engine), context_(context), places_(kMaxStreams) {}
  // Before the server starts, which ends before this object.
  void AddTo(rpc::CallServer* server);
  // Sends each stream a report whose interval is over.
  void Tick();
  // Ends the streams with UNAVAILABLE.
  void EndStreams();

 private:
  friend class LoadStream;

  const WorkerEngine& engine_;
  const rpc::Context* const context_;
  Gate places_;
  rpc::StreamSet<LoadStream> streams_;
  std::atomic<bool> ended_{false};
};

}  // namespace cairn::worker
