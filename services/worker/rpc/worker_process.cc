#include "services/worker/rpc/worker_process.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "cairn/client/connect.h"
#include "common/log/log.h"
#include "common/metrics/certificates.h"
#include "common/metrics/memory_metrics.h"
#include "common/service/policy.h"
#include "services/worker/engine/worker_device.h"
#include "services/worker/engine/worker_engine.h"
#include "services/worker/rpc/server.h"
#include "services/worker/rpc/worker_metrics.h"

namespace cairn::worker {
namespace {

// The engine has ended all requests by then: what is left is sending their last messages.
constexpr std::chrono::milliseconds kLastMessages{500};

class Worker final : public service::Service {
 public:
  Worker(const WorkerConfig& config, metrics::Registry* registry, tracing::Tracer* tracer)
      : config_(config), registry_(*registry), tracer_(tracer) {
    registry_.AddProcessMetrics({{"component", "worker"}});
    metrics::ExportCertificates(config_.tls, {{"cache", config_.cache_certificate}}, &registry_);
  }

  Status Start() override {
    CAIRN_ASSIGN_OR_RETURN(const WorkerEngine::Options options, EngineOptions(config_));
    std::unique_ptr<client::CacheClient> cache;
    if (!config_.cache_address.empty()) {
      client::ConnectOptions connection = CacheConnection(config_);
      CAIRN_ASSIGN_OR_RETURN(connection.devices,
                             OpenWorkerImporter(options.device, options.device_library));
      auto connected = client::Connect(connection);
      if (!connected.ok()) return Annotate(connected.status(), "settings cache.*");
      cache = *std::move(connected);
    }
    CAIRN_ASSIGN_OR_RETURN(engine_, WorkerEngine::Create(options, std::move(cache)));
    metrics_.emplace(registry_, *engine_);
    CAIRN_ASSIGN_OR_RETURN(
        access_, service::OpenPolicy(config_.auth_policy, &SteadyClock::Get(), &registry_));
    Server::Options serve;
    serve.access = access_.get();
    serve.tenant = config_.tenant;
    serve.listen = config_.listen;
    serve.tls = config_.tls;
    serve.tracer = tracer_;
    serve.max_requests = config_.queue_capacity + options.max_running;
    memory_.emplace(engine_->memory_bounds());
    serve.request_bytes = memory_->bound(MemoryItem::kRequests) / 2;
    CAIRN_ASSIGN_OR_RETURN(server_, Server::Start(serve, *engine_, *metrics_, &registry_));
    serving_.store(server_.get(), std::memory_order_release);
    registry_.AddCollector([this](metrics::Sink& sink) {
      engine_->MeasureMemory(&*memory_);
      const rpc::RequestBytes& requests = server_->requests();
      memory_->Measure(MemoryItem::kRequests, requests.used(), requests.refusals());
      metrics::ExportMemory(*memory_, "cairn_worker_memory", sink);
    });
    const WorkerEngine::Info info = engine_->GetInfo();
    log::Info("worker_ready", {{"model", info.model},
                               {"numerics", info.numerics},
                               {"threads", log::Num(info.threads)},
                               {"context", log::Num(info.context_tokens)},
                               {"cache", info.cache_address}});
    return OkStatus();
  }

  std::string address() const override { return server_->address(); }

  void Tick() override {
    if (access_ != nullptr) access_->Look();
    server_->Tick();
  }

  Duration BusyFor() const override {
    const Server* const server = serving_.load(std::memory_order_acquire);
    return server == nullptr ? Duration(0) : server->BusyFor();
  }

  Status Drain() override {
    server_->BeginDrain();
    engine_->Shutdown(std::chrono::duration_cast<std::chrono::milliseconds>(config_.drain));
    server_->Shutdown(kLastMessages);
    return OkStatus();
  }

 private:
  const WorkerConfig config_;
  metrics::Registry& registry_;
  tracing::Tracer* const tracer_;
  std::unique_ptr<WorkerEngine> engine_;
  std::optional<WorkerMetrics> metrics_;
  std::optional<MemoryAccount> memory_;
  std::unique_ptr<auth::Access> access_;  // nullptr: no policy.
  std::unique_ptr<Server> server_;
  std::atomic<const Server*> serving_{nullptr};  // Set once it has started.
};

}  // namespace

std::unique_ptr<service::Service> MakeWorker(const WorkerConfig& config,
                                             metrics::Registry* registry, tracing::Tracer* tracer) {
  return std::make_unique<Worker>(config, registry, tracer);
}

}  // namespace cairn::worker
