#include "services/worker/rpc/load_reports.h"

#include <utility>

#include "common/rpc/call.h"
#include "common/rpc/pushed_stream.h"
#include "common/rpc/rights_watch.h"
#include "common/rpc/status.h"
#include "services/worker/rpc/worker_service.h"

namespace cairn::worker {
namespace {

constexpr uint32_t kDefaultMs = 100;
constexpr uint32_t kLeastMs = 50;
constexpr uint32_t kMostMs = 60'000;

}  // namespace

void ToProto(const WorkerEngine::Load& load, v1::LoadReport* out) {
  out->set_prefill_seconds(load.prefill_seconds);
  out->set_running_prompts(static_cast<uint32_t>(load.running_prompts));
  out->set_running_decodes(static_cast<uint32_t>(load.running_decodes));
  out->set_parked(static_cast<uint32_t>(load.parked));
  out->set_kv_pages_free(load.kv_pages_free);
  out->set_kv_pages_total(load.kv_pages_total);
  out->set_prefill_tokens_per_second(load.rates.prefill_tokens_per_second);
  out->set_drain_tokens_per_second(load.rates.drain_tokens_per_second);
  out->set_pair_seconds(load.rates.pair_seconds);
  out->set_step_seconds(load.rates.step_seconds);
  out->set_decode_seconds(load.rates.decode_seconds);
  out->set_cache_node_id(load.cache_node_id);
  for (const WorkerEngine::Load::Queued& queued : load.queued) {
    v1::QueuedRequests* const one = out->add_queued();
    one->set_priority(queued.priority);
    one->set_requests(static_cast<uint32_t>(queued.requests));
    one->set_prefill_tokens(queued.prefill_tokens);
  }
}

// One call. The ticker and gRPC call it from any thread.
class LoadStream final : public rpc::PushedStream {
 public:
  LoadStream(LoadReports* all, rpc::Method* method, std::unique_ptr<rpc::RawCall> call)
      : PushedStream(std::move(call)), all_(all), call_(all->context_, method, &context()) {}

  Status Begin(const grpc::ByteBuffer& frame) {
    CAIRN_RETURN_IF_ERROR(call_.AdmitStream());
    v1::WatchLoadRequest request;
    CAIRN_RETURN_IF_ERROR(call_.Decode(frame, &request));
    const uint32_t ms = request.interval_ms() == 0 ? kDefaultMs : request.interval_ms();
    if (ms < kLeastMs || ms > kMostMs) {
      return InvalidArgument("field 'interval_ms': got {}, expected {} to {}, or 0 for {}", ms,
                             kLeastMs, kMostMs, kDefaultMs);
    }
    interval_ = std::chrono::milliseconds(ms);
    CAIRN_ASSIGN_OR_RETURN(place_, call_.TakePlaceAt(&all_->places_, "streams of load reports",
                                                     "at most 64 at a time"));
    return OkStatus();
  }

  // The ticker's, and once before it knows the stream.
  void Tick(TimePoint now, const v1::LoadReport& report) {
    if (IsRevoked()) return End(rpc::ToGrpc(rpc::RightsHaveChanged()));
    MutexLock lock(mu_);
    // A tick that comes a little early is taken: the next one would be late.
    if (now + LoadReports::kTick / 2 < next_) return;
    v1::LoadReport own = report;
    own.set_sequence(sequence_ + 1);
    // A client that reads slowly gets the next report.
    if (!TryWrite(own)) return;
    ++sequence_;
    next_ = now + interval_;
  }

 private:
  void OnOver(const grpc::Status& /*status*/) override { all_->streams_.Remove(this); }
  bool IsRevoked() {
    MutexLock lock(mu_);
    return rights_.Changed(all_->context_->access, call_.caller());
  }

  LoadReports* const all_;
  rpc::Call call_;
  Gate::Pass place_;
  Duration interval_{0};  // Constant after Begin.
  Mutex mu_;
  rpc::RightsWatch rights_ ABSL_GUARDED_BY(mu_);
  TimePoint next_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
};

void LoadReports::AddTo(rpc::CallServer* server) {
  rpc::Method* const method = context_->metrics->Add(kWorkerService, "WatchLoad");
  server->Add(method->path(),
              [this, method](std::unique_ptr<rpc::RawCall> call, const grpc::ByteBuffer& request) {
                auto stream = std::make_shared<LoadStream>(this, method, std::move(call));
                stream->Start(stream);
                if (const Status begun = stream->Begin(request); !begun.ok()) {
                  return stream->End(rpc::ToGrpc(begun));
                }
                streams_.Add(stream);
                Tick();
                // It may have come after the end.
                if (ended_.load()) EndStreams();
              });
}

void LoadReports::Tick() {
  const auto streams = streams_.All();
  if (streams.empty()) return;
  v1::LoadReport report;
  ToProto(engine_.GetLoad(), &report);
  report.set_draining(context_->draining.load(std::memory_order_relaxed));
  const TimePoint now = context_->clock->Now();
  for (const auto& stream : streams) stream->Tick(now, report);
}

void LoadReports::EndStreams() {
  ended_.store(true);
  const grpc::Status status = rpc::ToGrpc(rpc::ShuttingDown(*context_));
  for (const auto& stream : streams_.All()) stream->End(status);
}

}  // namespace cairn::worker
