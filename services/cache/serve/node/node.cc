#include "services/cache/serve/node/node.h"

#include <sys/random.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/metrics/certificates.h"
#include "common/net/address.h"
#include "common/net/congestion.h"
#include "common/net/operator_path.h"
#include "common/net/tls.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/health_service.h"
#include "common/rpc/server.h"
#include "common/service/policy.h"
#include "protocol/wire/method_roles.h"
#include "protocol/wire/request_bounds.h"
#include "services/cache/serve/node/cluster_member.h"
#include "services/cache/serve/node/descriptors.h"
#include "services/cache/serve/node/device_setup.h"
#include "services/cache/serve/node/engine_metrics.h"
#include "services/cache/serve/node/events_setup.h"
#include "services/cache/serve/node/exit_guard.h"
#include "services/cache/serve/node/identity.h"
#include "services/cache/serve/node/link_setup.h"
#include "services/cache/serve/node/local_metrics.h"
#include "services/cache/serve/node/local_socket.h"
#include "services/cache/serve/rpc/admin_service.h"
#include "services/cache/serve/rpc/cache_service.h"
#include "services/cache/serve/rpc/cluster_service.h"
#include "services/cache/store/tier/disk/disk_tier.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {
namespace {

// The largest request, apart from frames of Push: 65536 keys of 32 bytes.
constexpr int kLargestRequest = 3 << 20;

// After the last flush nothing is lost any more: a process that has not ended by then waits for a
// device that hangs.
constexpr Duration kStopLimit = std::chrono::seconds(15);

std::string RandomId() {
  uint64_t value = 0;
  CAIRN_CHECK(getrandom(&value, sizeof value, 0) == sizeof value);
  return fmt::format("{:016x}", value);
}

class Node final : public service::Service {
 public:
  Node(const NodeConfig& config, metrics::Registry* registry, tracing::Tracer* tracer)
      : config_(config),
        memory_(config.MemoryBounds()),
        registry_(*registry),
        tracer_(tracer),
        rpc_metrics_(registry),
        gate_(config.rpc.max_in_flight),
        request_bytes_(config.rpc_memory / 8, SettingOf(MemoryItem::kRpc)),
        mover_({.name = "mover",
                .threads = config.mover_threads,
                .queue_capacity = 2ull * config.engine.mover_queue_capacity}),
        calls_({.name = "rpc",
                .threads = config.rpc_threads,
                .queue_capacity = config.rpc.max_in_flight}),
        fetches_({.name = "fetch",
                  .threads = config.rpc_fetch_threads,
                  .queue_capacity = config.rpc.max_in_flight}),
        flushes_({.name = "flush", .threads = 1, .queue_capacity = 64}) {}

  ~Node() override { Stop(); }

  Status Start() override {
    CAIRN_RETURN_IF_ERROR(RaiseDescriptorLimit());
    CAIRN_RETURN_IF_ERROR(OpenPolicy());
    CAIRN_RETURN_IF_ERROR(OpenTiers());
    rpc_.host = config_.cluster.host;
    rpc_.zone = config_.cluster.zone;
    if (config_.cluster.enabled()) {
      CAIRN_ASSIGN_OR_RETURN(cluster_,
                             ClusterMember::Create(config_, rpc_.node_id, rpc_.node_epoch,
                                                   devices_.tier.get(), &memory_, &registry_));
    }
    CAIRN_RETURN_IF_ERROR(OpenEngine());
    if (cluster_ != nullptr) cluster_->Attach(engine_.get());
    CAIRN_RETURN_IF_ERROR(Listen());
    CAIRN_RETURN_IF_ERROR(PublishEvents());
    // Only now: sessions of engines that knocked before learn of the same-node socket, and blocks
    // that they store are published.
    server_.Serve();
    return cluster_ == nullptr ? OkStatus() : cluster_->Start();
  }

  std::string address() const override { return server_.address(); }

  void Tick() override {
    if (devices_.tier != nullptr) devices_.tier->Tick();
    TakeOverPolicy();
    engine_->Tick();
    service_->Tick();
    grpc_health_.Tick();
  }

  std::string Degraded() const override {
    std::string reasons = DegradedDevices(devices_);
    if (cluster_ != nullptr && !cluster_->no_links().empty()) {
      reasons += (reasons.empty() ? "no links: " : "; no links: ") + cluster_->no_links();
    }
    return reasons;
  }

  Duration BusyFor() const override { return server_.calls().BusyFor(); }

  Status Drain() override {
    EndProcessAfter(
        config_.drain_grace + config_.drain_timeout + config_.drain_flush_timeout + 2 * kStopLimit,
        1);
    const Status flushed = DrainAndFlush();
    EndProcessAfter(kStopLimit, flushed.ok() ? 0 : 1);
    return flushed;
  }

 private:
  Status DrainAndFlush() {
    rpc_.draining = true;
    grpc_health_.Tick();
    if (cluster_ != nullptr) cluster_->Leave();
    engine_->BeginDrain();
    service_->AnnounceDrain();
    // Clients with a match in hand may still fetch it, writers may still commit.
    engine_->WaitUnused(clock_.Now() + config_.drain_grace);
    gate_.Close();
    if (!gate_.WaitEmpty(clock_.Now() + config_.drain_timeout)) {
      log::Warn("drain_timeout", {{"calls", log::Num(gate_.inside())}});
    }
    service_->EndStreams();
    grpc_health_.EndStreams();
    // Waits for the last call: what a commit that goes on stores is to be flushed, too.
    server_.Shutdown(std::chrono::seconds(1));
    return engine_->Flush(
        FlushRequest{.deadline = clock_.Now() + config_.drain_flush_timeout, .last = true});
  }

  // The policy of now, with its limits.
  void TakeOverPolicy() {
    if (access_ == nullptr) return;
    access_->Look();
    if (const uint64_t version = access_->version(); version != limits_version_) {
      limits_version_ = version;
      engine_->SetTenantLimits([this](std::string_view tenant) {
        const auth::Limits limits = access_->LimitsOf(tenant);
        TenantLimits here;
        here.most[TierKind::kHost] = limits.memory;
        here.most[TierKind::kDisk] = limits.disk;
        here.guaranteed[TierKind::kHost] = limits.guaranteed_memory;
        here.guaranteed[TierKind::kDisk] = limits.guaranteed_disk;
        here.bytes_per_second = limits.bytes_per_second;
        here.sessions = limits.sessions;
        return here;
      });
    }
  }

  Status OpenPolicy() {
    CAIRN_ASSIGN_OR_RETURN(access_, service::OpenPolicy(config_.policy, &clock_, &registry_));
    rpc_.access = access_.get();
    rpc_.role_of = &wire::RoleOf;
    return OkStatus();
  }

  Status OpenTiers() {
    const auto huge = config_.host_huge_pages == "off"   ? HostTierOptions::HugePages::kOff
                      : config_.host_huge_pages == "try" ? HostTierOptions::HugePages::kTry
                                                         : HostTierOptions::HugePages::kRequire;
    CAIRN_ASSIGN_OR_RETURN(host_, HostTier::Create({.capacity_bytes = config_.host_capacity,
                                                    .huge_pages = huge,
                                                    .prefault = config_.host_prefault}));
    CAIRN_ASSIGN_OR_RETURN(devices_, OpenDevices(config_, host_.get(), &clock_));
    CAIRN_ASSIGN_OR_RETURN(rpc_.node_epoch, NextEpoch(config_.disk_path));
    if (config_.disk_path.empty()) {
      rpc_.node_id = config_.node_id.empty() ? RandomId() : config_.node_id;
      return OkStatus();
    }
    DiskTierOptions options;
    options.directory = config_.disk_path + "/tier";
    options.capacity_bytes = config_.disk_capacity;
    options.node_id = config_.node_id;
    options.queue_depth = config_.disk_queue_depth;
    options.io_backend = config_.disk_io_backend;
    options.scrub_bytes_per_second = config_.disk_scrub_rate;
    options.direct_io = config_.disk_direct_io;
    options.min_free_bytes = config_.disk_min_free;
    options.wipe_on_mismatch = config_.disk_wipe_on_mismatch;
    options.take_over = config_.disk_take_over;
    options.wipe_on_damage = config_.disk_wipe_on_damage;
    if (const std::string reason = config_.DiskTooFull(); !reason.empty()) {
      log::Warn("disk_too_full", {{"reason", reason}});
    }
    CAIRN_ASSIGN_OR_RETURN(disk_, DiskTier::Open(options));
    rpc_.node_id = disk_->node_id();
    return OkStatus();
  }

  Status OpenEngine() {
    if (cluster_ == nullptr) timers_.Start();
    CAIRN_ASSIGN_OR_RETURN(
        engine_,
        CacheEngine::Create(
            config_.engine,
            {.tiers =
                 Tiers(host_.get()).Add(static_cast<Tier*>(devices_.tier.get())).Add(disk_.get()),
             .clock = &clock_,
             .executor = &mover_,
             .node_id = rpc_.node_id,
             .node_epoch = rpc_.node_epoch,
             .disk_io_mode = disk_ == nullptr ? "" : disk_->io_mode(),
             .source = cluster_ == nullptr ? nullptr : cluster_->source(),
             .timers = cluster_ == nullptr ? &timers_ : cluster_->timers(),
             .memory = &memory_}));
    TakeOverPolicy();
    const std::string io_backend = disk_ == nullptr ? "none" : disk_->io_mode();
    registry_.AddProcessMetrics({{"io_backend", io_backend}});
    ExportEngine(engine_.get(), &registry_);
    ExportMemory(&memory_, engine_.get(), &registry_);
    if (disk_ != nullptr) ExportDiskTier(disk_.get(), &registry_);
    ExportDevices(devices_, &registry_);
    metrics::ExportCertificates(config_.rpc.tls, {}, &registry_);
    return OkStatus();
  }

  Status Listen() {
    rpc_.tracer = tracer_;
    rpc_.process = "node";
    rpc_.limit = "rpc.max_in_flight";
    rpc_.engine = engine_.get();
    rpc_.memory = &memory_;
    rpc_.clock = &clock_;
    rpc_.executor = &calls_;
    rpc_.fetch_executor = &fetches_;
    rpc_.flush_executor = &flushes_;
    rpc_.metrics = &rpc_metrics_;
    rpc_.gate = &gate_;
    rpc_.sessions = &sessions_;
    rpc_.begin_drain = [] { ShutdownSignals::Request(); };
    rpc_.options = config_.rpc;
    rpc_.options.max_sessions = config_.engine.max_sessions;
    // One budget for all bytes in flight: a half for what is sent, three eighths for what gRPC
    // receives, and one for requests that were decoded and wait.
    rpc_.request_bytes = &request_bytes_;
    rpc_.bounds = &wire::RequestBounds();
    rpc_.options.send_bytes = config_.rpc_memory / 2;
    service_ = CacheService::Create(&rpc_, &registry_);
    service_->AddTo(server_.calls());
    AddAdminService(server_.calls(), &rpc_);
    AddClusterService(server_.calls(), &rpc_, cluster_ == nullptr ? nullptr : &cluster_->cluster());
    grpc_health_.AddTo(server_.calls());
    if (cluster_ != nullptr) cluster_->AddTo(server_.calls(), &rpc_);

    const int largest =
        std::max<int>(kLargestRequest, static_cast<int>(config_.rpc.max_frame_bytes)) + (64 << 10);
    CAIRN_RETURN_IF_ERROR(server_.Listen({.listen = config_.listen,
                                          .listen_unix = config_.listen_unix,
                                          .tls = config_.rpc.tls,
                                          .max_message_bytes = largest,
                                          .memory_bytes = config_.receive_bytes(),
                                          .keepalive = config_.keepalive,
                                          .max_connection_age = config_.max_connection_age}));
    if (server_.port() != 0) {
      CAIRN_ASSIGN_OR_RETURN(
          const std::string congestion_control,
          net::ListenerCongestionControl(server_.port(), config_.rpc_congestion_control,
                                         "rpc.congestion_control"));
      const net::TlsOptions& tls = config_.rpc.tls;
      log::Info("listening", {{"address", address()},
                              {"congestion_control", congestion_control},
                              {"tls", tls.enabled() ? "on" : "off"},
                              {"clients", tls.mutual() ? "with a certificate" : "anyone"}});
    }
    CAIRN_RETURN_IF_ERROR(ServeOperators());
    return ServeLocal(server_.port());
  }

  Status ServeOperators() {
    if (config_.admin_socket == "off") return OkStatus();
    const bool choose = config_.admin_socket == "auto";
    const auto listen = [&]() -> Status {
      std::string path = config_.admin_socket;
      if (choose) {
        CAIRN_ASSIGN_OR_RETURN(const std::string folder,
                               net::RuntimeFolder("admin.socket", /*make=*/true));
        path = server_.port() > 1 ? net::OperatorSocketIn(folder, server_.port())
                                  : fmt::format("{}/cairn-pid{}-admin.sock", folder, getpid());
      }
      CAIRN_RETURN_IF_ERROR(Annotate(server_.ListenForOperators(path), "admin.socket"));
      log::Info("listening_for_operators", {{"path", path}});
      return OkStatus();
    };
    const Status status = listen();
    if (status.ok() || !choose) return status;
    log::Warn("no_admin_socket", {{"reason", Message(status)}});
    return OkStatus();
  }

  Status ServeLocal(int port) {
    if (config_.local_socket != "off") {
      auto server = StartLocalServer(config_, port,
                                     {engine_.get(), host_.get(), &clock_, &local_metrics_,
                                      &memory_, devices_.tier.get(), &calls_},
                                     rpc_.node_epoch);
      if (server.ok()) {
        local_ = *std::move(server);
        rpc_.local = local_.get();
      } else if (config_.local_socket != "auto") {
        return server.status();
      } else {
        log::Warn("no_local_socket", {{"reason", Message(server.status())}});
      }
    }
    ExportLocal(local_ == nullptr ? nullptr : &local_->stats(), &registry_);
    return OkStatus();
  }

  Status PublishEvents() {
    if (!config_.events.enabled()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(events_memory_,
                           memory_.Charge(MemoryItem::kEvents, config_.events.memory));
    CAIRN_ASSIGN_OR_RETURN(events_, StartEvents(config_, rpc_.node_id, engine_.get(), &clock_));
    ExportEvents(events_.get(), &registry_);
    return OkStatus();
  }

  // In the reverse order of Start; each step only where its counterpart happened.
  void Stop() {
    server_.Shutdown(Duration(0));  // Calls that end need the executors.
    calls_.Stop();
    fetches_.Stop();
    flushes_.Stop();
    service_.reset();
    local_.reset();
    events_.reset();
    if (cluster_ != nullptr) cluster_->StopThreads();
    mover_.Stop();
    engine_.reset();
    cluster_.reset();
    disk_.reset();
    devices_.tier.reset();
    host_.reset();
  }

  const NodeConfig config_;
  MemoryAccount memory_;
  SteadyClock clock_;
  metrics::Registry& registry_;
  tracing::Tracer* const tracer_;
  rpc::CallMetrics rpc_metrics_;
  Gate gate_;
  rpc::RequestBytes request_bytes_;
  Sessions sessions_;
  std::unique_ptr<auth::Access> access_;  // nullptr: no policy.
  uint64_t limits_version_ = 0;           // The policy whose limits the engine has.
  RpcContext rpc_;
  ThreadPool mover_, calls_, fetches_, flushes_;
  std::unique_ptr<HostTier> host_;
  OpenedDevices devices_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<ClusterMember> cluster_;  // nullptr: the node is alone.
  Timers timers_{&SteadyClock::Get()};      // The timers of a node that is alone.
  std::unique_ptr<CacheEngine> engine_;
  LocalMetrics local_metrics_{&registry_};
  std::unique_ptr<LocalServer> local_;
  MemoryCharge events_memory_;
  std::unique_ptr<ZmqPublisher> events_;  // nullptr: nothing is published.
  std::unique_ptr<CacheService> service_;
  rpc::HealthService grpc_health_{&rpc_, ServiceNames()};
  rpc::Server server_;
};

}  // namespace

std::unique_ptr<service::Service> MakeNode(const NodeConfig& config, metrics::Registry* registry,
                                           tracing::Tracer* tracer) {
  PrepareLinks(config);
  return std::make_unique<Node>(config, registry, tracer);
}

}  // namespace cairn::cache
