#include "services/worker/engine/worker_engine.h"

#include <optional>
#include <thread>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "services/worker/engine/engine_core.h"
#include "services/worker/session/push_thread.h"

namespace cairn::worker {
namespace {

// The threads of an engine: one drives it, one pushes, others fetch.
class ThreadedEngine final : public WorkerEngine {
 public:
  explicit ThreadedEngine(EngineParts parts)
      : clock_(*parts.clock),
        background_(parts.cache == nullptr ? nullptr
                                           : std::make_unique<ThreadPool>(Background(parts))),
        core_(std::move(parts), background_.get()) {
    if (core_.push_queue() != nullptr) {
      push_thread_.emplace(*core_.push_queue());
      urgent_push_thread_.emplace(*core_.urgent_push_queue());
    }
    thread_ = std::thread([this] { core_.Run(); });
  }

  ~ThreadedEngine() override { Shutdown(std::chrono::milliseconds(0)); }

  Result<GenerateSummary> Generate(const GenerateRequest& request,
                                   const GenerateCallbacks& callbacks) override {
    return core_.Generate(request, callbacks);
  }
  bool WaitIdle(std::chrono::milliseconds timeout) override { return core_.WaitIdle(timeout); }
  Info GetInfo() const override { return core_.GetInfo(); }
  Stats GetStats() const override { return core_.GetStats(); }
  Load GetLoad() const override { return core_.GetLoad(); }
  MemoryAccount::Bounds memory_bounds() const override { return core_.memory_bounds(); }
  void MeasureMemory(MemoryAccount* account) const override { core_.MeasureMemory(account); }
  const model::Model& model() const override { return core_.model(); }

  void Shutdown(std::chrono::milliseconds drain) override {
    MutexLock shutdown(shutdown_mu_);
    if (!thread_.joinable()) return;
    const TimePoint deadline = clock_.Now() + drain;
    core_.Close(deadline);
    thread_.join();
    core_.Finish(deadline);
  }

 private:
  static ThreadPool::Options Background(const EngineParts& parts) {
    // All running requests may fetch at the same time, and none may wait for another: a fetch that
    // brings nothing for long is given up. Nor may a question about the namespace hold one up.
    const size_t running = parts.scheduler->max_running();
    return {.name = "cairn-fetch", .threads = running + 1, .queue_capacity = running + 4};
  }

  const Clock& clock_;
  const std::unique_ptr<ThreadPool> background_;  // Null without a cache.
  EngineCore core_;
  std::optional<PushThread> push_thread_, urgent_push_thread_;
  Mutex shutdown_mu_;  // Serialises Shutdown.
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<WorkerEngine>> WorkerEngine::Create(
    const Options& options, std::unique_ptr<client::CacheClient> cache,
    std::unique_ptr<Scheduler> scheduler) {
  CAIRN_ASSIGN_OR_RETURN(
      EngineParts parts,
      LoadEngineParts(options, std::move(cache), std::move(scheduler), SteadyClock::Get()));
  return std::make_unique<ThreadedEngine>(std::move(parts));
}

}  // namespace cairn::worker
