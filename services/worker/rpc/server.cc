#include "services/worker/rpc/server.h"

#include <optional>
#include <utility>

#include "common/concurrency/executor.h"
#include "common/concurrency/ticker.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/health_service.h"
#include "common/rpc/server.h"
#include "protocol/wire/method_roles.h"
#include "protocol/wire/request_bounds.h"
#include "services/worker/rpc/load_reports.h"
#include "services/worker/rpc/worker_service.h"

namespace cairn::worker {
namespace {

// Threads in addition to those of requests: for GetInfo, and for requests that the engine refuses.
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
        request_bytes(options.request_bytes, "rpc.requests"),
        requests({.name = "request",
                  .threads = options.max_requests + kSpareThreads,
                  .queue_capacity = kWaitingCalls}),
        waits({.name = "wait", .threads = kWaitThreads, .queue_capacity = kWaitingCalls}),
        // One: the engine's threads need the processors.
        tokenize({.name = "tokenize", .threads = 1, .queue_capacity = kWaitingCalls}),
        service(engine, worker_metrics, options.tenant),
        loads(engine, &context) {
    context.clock = &SteadyClock::Get();
    context.metrics = &call_metrics;
    context.gate = &gate;
    context.request_bytes = &request_bytes;
    context.bounds = &wire::RequestBounds();
    context.tracer = options.tracer;
    context.access = options.access;
    context.role_of = &wire::RoleOf;
    context.entry = "Generate";
    context.process = "worker";
    service.AddTo(server.calls(), &context,
                  {.requests = &requests, .waits = &waits, .tokenize = &tokenize});
    health.AddTo(server.calls());
    loads.AddTo(server.calls());
  }

  rpc::CallMetrics call_metrics;
  Gate gate;  // The executors bound the calls under way.
  rpc::RequestBytes request_bytes;
  rpc::Context context;
  ThreadPool requests, waits, tokenize;
  WorkerService service;
  rpc::HealthService health{&context, {kWorkerService}};
  LoadReports loads;
  rpc::Server server;  // Ends first: its calls need all of the above.
  // Slow work of the process must not make reports late.
  std::optional<Ticker> load_ticker;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(std::chrono::milliseconds(0)); }

const std::string& Server::address() const { return impl_->server.address(); }

Result<std::unique_ptr<Server>> Server::Start(const Options& options, WorkerEngine& engine,
                                              const WorkerMetrics& metrics,
                                              metrics::Registry* registry) {
  auto impl = std::make_unique<Impl>(options, engine, metrics, registry);
  CAIRN_RETURN_IF_ERROR(impl->server.Start({.listen = options.listen,
                                            .tls = options.tls,
                                            .max_message_bytes = kMaxMessageBytes,
                                            .memory_bytes = options.request_bytes}));
  impl->load_ticker.emplace(LoadReports::kTick, [loads = &impl->loads] { loads->Tick(); });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Tick() { impl_->health.Tick(); }

Duration Server::BusyFor() const { return impl_->server.calls()->BusyFor(); }

const rpc::RequestBytes& Server::requests() const { return impl_->request_bytes; }

void Server::BeginDrain() {
  impl_->context.draining = true;
  impl_->health.Tick();
}

void Server::Shutdown(std::chrono::milliseconds grace) {
  BeginDrain();
  impl_->health.EndStreams();
  impl_->loads.EndStreams();
  impl_->server.Shutdown(grace);
}

}  // namespace cairn::worker
