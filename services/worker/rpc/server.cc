#include "services/worker/rpc/server.h"

#include <utility>

#include "common/concurrency/executor.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/health_service.h"
#include "common/rpc/server.h"
#include "services/worker/rpc/worker_service.h"

namespace cairn::worker {
namespace {

// Threads beside those of requests: GetInfo, Tokenize, and requests that the engine refuses.
constexpr size_t kSpareThreads = 8;
constexpr size_t kWaitThreads = 8;
// Calls that wait for a thread. More are refused.
constexpr size_t kWaitingCalls = 64;
constexpr int kMaxMessageBytes = 16 << 20;

}  // namespace

struct Server::Impl {
  Impl(const Options& options, WorkerEngine& engine, const WorkerMetrics& worker_metrics,
       metrics::Registry* registry)
      : call_metrics(registry),
        requests({.name = "request",
                  .threads = options.max_requests + kSpareThreads,
                  .queue_capacity = kWaitingCalls}),
        waits({.name = "wait", .threads = kWaitThreads, .queue_capacity = kWaitingCalls}),
        service(engine, worker_metrics) {
    context.clock = &SteadyClock::Get();
    context.metrics = &call_metrics;
    context.gate = &gate;
    context.process = "worker";
    service.AddTo(server.calls(), &context, {.requests = &requests, .waits = &waits});
    health.AddTo(server.calls());
  }

  rpc::CallMetrics call_metrics;
  Gate gate;  // The executors bound the calls under way.
  rpc::Context context;
  ThreadPool requests, waits;
  WorkerService service;
  rpc::HealthService health{&context, {kWorkerService}};
  rpc::Server server;  // Ends first: its calls need all of the above.
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(std::chrono::milliseconds(0)); }

const std::string& Server::address() const { return impl_->server.address(); }

Result<std::unique_ptr<Server>> Server::Start(const Options& options, WorkerEngine& engine,
                                              const WorkerMetrics& metrics,
                                              metrics::Registry* registry) {
  auto impl = std::make_unique<Impl>(options, engine, metrics, registry);
  CAIRN_RETURN_IF_ERROR(impl->server.Start({.listen = options.listen,
                                            .listen_unix = {},
                                            .tls = options.tls,
                                            .max_message_bytes = kMaxMessageBytes}));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Tick() { impl_->health.Tick(); }

Duration Server::BusyFor() const { return impl_->server.calls()->BusyFor(); }

void Server::BeginDrain() {
  impl_->context.draining = true;
  impl_->health.Tick();
}

void Server::Shutdown(std::chrono::milliseconds grace) {
  BeginDrain();
  impl_->health.EndStreams();
  impl_->server.Shutdown(grace);
}

}  // namespace cairn::worker
