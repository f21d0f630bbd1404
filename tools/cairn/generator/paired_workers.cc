#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/concurrency/mutex.h"
#include "common/log/log.h"
#include "tools/cairn/generator/generator.h"

namespace cairn::cli {
namespace {

// How long the decode worker waits for blocks unless the caller says so itself.
constexpr Duration kAwait = std::chrono::seconds(60);
constexpr std::chrono::milliseconds kPoll{20};

// A prompt that one worker computes, for another one.
class Prefill {
 public:
  Prefill(Generator& worker, worker::GenerateRequest request)
      : thread_([this, &worker, request = std::move(request)] { Run(worker, request); }) {}
  ~Prefill() {
    stopped_ = true;
    thread_.join();
  }

  // Until the blocks are announced, or will not be. False: `cancelled` said true.
  bool WaitAnnounced(const std::function<bool()>& cancelled) {
    MutexLock lock(mu_);
    while (!announced_) {
      if (cancelled && cancelled()) return false;
      changed_.WaitUntil(mu_, SteadyClock::Get(), SteadyClock::Get().Now() + kPoll,
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return announced_; });
    }
    return true;
  }

 private:
  void Run(Generator& worker, const worker::GenerateRequest& request) {
    worker::GenerateCallbacks callbacks;
    callbacks.on_announced = [this] {
      Announced();
      return true;
    };
    callbacks.cancelled = [this] { return stopped_.load(); };
    const auto summary = worker.Generate(request, callbacks);
    if (!summary.ok()) log::Warn("prefill_failed", {{"error", ToString(summary.status())}});
    Announced();
  }
  void Announced() {
    MutexLock lock(mu_);
    announced_ = true;
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  bool announced_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> stopped_{false};
  std::thread thread_;  // Last: it uses all of the above.
};

class PairedWorkers final : public Generator {
 public:
  PairedWorkers(std::unique_ptr<Generator> prefill, std::unique_ptr<Generator> decode)
      : prefill_(std::move(prefill)), decode_(std::move(decode)) {}

  Result<worker::GenerateSummary> Generate(const worker::GenerateRequest& request,
                                           const worker::GenerateCallbacks& callbacks) override {
    if (request.no_cache) return decode_->Generate(request, callbacks);
    worker::GenerateRequest first = request;
    first.prefill_only = true;
    first.await_prefill = Duration(0);
    first.keep_turn = false;
    worker::GenerateRequest second = request;
    if (second.await_prefill == Duration(0)) second.await_prefill = kAwait;
    Prefill prefill(*prefill_, std::move(first));
    if (!prefill.WaitAnnounced(callbacks.cancelled)) {
      worker::GenerateSummary summary;
      summary.finish_reason = "cancelled";
      return summary;
    }
    return decode_->Generate(second, callbacks);
  }
  Status WaitIdle(std::chrono::milliseconds timeout) override { return decode_->WaitIdle(timeout); }
  Result<Info> GetInfo() override { return decode_->GetInfo(); }

 private:
  const std::unique_ptr<Generator> prefill_, decode_;
};

}  // namespace

std::unique_ptr<Generator> PairWorkers(std::unique_ptr<Generator> prefill,
                                       std::unique_ptr<Generator> decode) {
  return std::make_unique<PairedWorkers>(std::move(prefill), std::move(decode));
}

}  // namespace cairn::cli
