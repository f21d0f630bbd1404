// cairn-worker: runs a model; fetches its prompts' KV from a cache node and pushes what it computes.

#include <cstdio>
#include <memory>

#include "cairn/client/connect.h"
#include "services/common/base/allocator.h"
#include "services/common/base/grpc_log.h"
#include "services/common/base/lock_checks.h"
#include "services/common/config/config.h"
#include "services/common/lifecycle/lifecycle.h"
#include "services/common/log/log.h"
#include "services/common/metrics/admin_server.h"
#include "services/common/metrics/metrics.h"
#include "services/worker/rpc/server.h"
#include "services/worker/rpc/worker_config.h"
#include "services/worker/rpc/worker_metrics.h"

namespace cairn::worker {
namespace {

// Main itself only waits for a signal: it beats this often.
constexpr std::chrono::seconds kBeat{1};
constexpr std::chrono::seconds kMaxSilence{60};

Status Serve(const WorkerConfig& config, ShutdownSignals& signals) {
  CAIRN_ASSIGN_OR_RETURN(const log::Level level, log::ParseLevel(config.log_level));
  CAIRN_ASSIGN_OR_RETURN(const log::Format format, log::ParseFormat(config.log_format));
  log::Configure({.level = level, .format = format});

  metrics::Registry registry;
  registry.AddProcessMetrics({{"component", "worker"}});
  metrics::Health health(&SteadyClock::Get(), kMaxSilence);
  health.Beat();
  health.SetState(metrics::NodeState::kStarting, "loading the model");
  health.Export(&registry);
  std::unique_ptr<WorkerEngine> engine;  // Outlives the scrapes of the admin server.
  CAIRN_ASSIGN_OR_RETURN(const auto admin,
                         metrics::AdminServer::Start(config.admin_listen, &registry, &health));

  CAIRN_ASSIGN_OR_RETURN(const WorkerEngine::Options options, EngineOptions(config));
  std::unique_ptr<client::CacheClient> cache;
  if (!config.cache_address.empty()) {
    CAIRN_ASSIGN_OR_RETURN(cache, client::Connect(CacheConnection(config)));
  }
  CAIRN_ASSIGN_OR_RETURN(engine, WorkerEngine::Create(options, std::move(cache)));
  const WorkerMetrics worker_metrics(registry, *engine);
  Server::Options serve;
  serve.listen = config.listen;
  serve.tls = config.tls;
  serve.max_requests = config.queue_capacity + 1;
  CAIRN_ASSIGN_OR_RETURN(const auto server, Server::Start(serve, *engine, worker_metrics));
  health.SetState(metrics::NodeState::kReady, "");
  const WorkerEngine::Info info = engine->GetInfo();
  log::Info("worker_ready", {{"model", info.model},
                             {"numerics", info.numerics},
                             {"threads", log::Num(info.threads)},
                             {"context", log::Num(info.context_tokens)},
                             {"cache", info.cache_address}});
  std::printf("ready grpc=%s admin=%s\n", server->address().c_str(), admin->address().c_str());
  std::fflush(stdout);

  int signal_number = 0;
  while (signal_number == 0) {
    health.Beat();
    signal_number = signals.WaitUntil(std::chrono::steady_clock::now() + kBeat);
  }
  log::Info("worker_draining", {{"signal", log::Num(signal_number)}});
  health.SetState(metrics::NodeState::kDraining, "draining");
  const auto drain = std::chrono::duration_cast<std::chrono::milliseconds>(config.drain);
  engine->Shutdown(drain);
  // The engine has ended all requests: what is left is sending their last messages.
  server->Shutdown(std::chrono::milliseconds(500));
  log::Info("worker_stopped");
  return OkStatus();
}

int Main(int argc, char** argv) {
  TuneAllocator();
  SilenceGrpcLog();
  SkipLockChecks();
  ShutdownSignals signals;
  WorkerConfig config;
  config::Schema schema("cairn-worker",
                        "Runs a GGUF model whose prompts' KV is shared through a cache node.",
                        "cairn-worker --model model.gguf --cache 127.0.0.1:7400");
  Register(schema, config);
  const Result<config::CommandLine> line =
      config::Load(schema, ExpandShortFlags({argv + 1, argv + argc}));
  Status status = line.status();
  if (status.ok() && line->exit) {
    std::fputs(line->output.c_str(), stdout);
    return 0;
  }
  if (status.ok() && !line->words.empty()) {
    status = InvalidArgument("got '{}', expected flags only", line->words.front());
  }
  const bool usable = status.ok();
  if (usable) status = Serve(config, signals);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cairn-worker: %s\n", Message(status).c_str());
  // As the cache node: 2 for settings that cannot be used.
  return !usable || status.code() == StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace
}  // namespace cairn::worker

int main(int argc, char** argv) { return cairn::worker::Main(argc, argv); }
