#include "services/cache/serve/node/cluster_member.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"
#include "common/membership/cares_resolver.h"
#include "common/membership/dns_discovery.h"
#include "common/membership/etcd/etcd_discovery.h"
#include "common/membership/static_discovery.h"
#include "services/cache/serve/node/cluster_metrics.h"
#include "services/cache/serve/rpc/peer_service.h"

namespace cairn::cache {
namespace {

// Announcements of this long go out together.
constexpr Duration kTick = std::chrono::milliseconds(20);
// A node starts all the same if nobody has told it of bumps by then.
constexpr Duration kSettle = std::chrono::seconds(2);

// One hashes a block while another one ends a match.
constexpr size_t kAnswerThreads = 2;

uint64_t RandomNumber() {
  uint64_t value = 0;
  CAIRN_CHECK(getrandom(&value, sizeof value, 0) == sizeof value);
  return value;
}

// An eighth of the memory is for what look-ups found. The directory takes three quarters.
size_t RememberedBlocks(uint64_t memory) {
  return std::clamp<size_t>(memory / 8 / PlanTable::kMostBytesOfABlock, 8192, 262'144);
}

PeerHello SelfOf(const NodeConfig& config, const std::string& node_id, uint64_t node_epoch) {
  const ClusterConfig& cluster = config.cluster;
  PeerHello self;
  self.caller = {.cluster = cluster.name, .id = node_id, .incarnation = RandomNumber()};
  self.epoch = node_epoch;
  self.address = cluster.advertise;
  self.host = cluster.host;
  self.zone = cluster.zone;
  self.program = config::Version();
  if (cluster.speak != 0) self.newest_version = cluster.speak;
  return self;
}

}  // namespace

Result<std::unique_ptr<ClusterMember>> ClusterMember::Create(
    const NodeConfig& config, const std::string& node_id, uint64_t node_epoch, DeviceTier* devices,
    MemoryAccount* memory, metrics::Registry* registry) {
  std::unique_ptr<ClusterMember> member(new ClusterMember(config));
  CAIRN_RETURN_IF_ERROR(member->MakeDiscovery());
  const ClusterConfig& cluster = config.cluster;
  const net::TlsOptions& tls = config.rpc.tls;
  const PeerHello self = SelfOf(config, node_id, node_epoch);
  member->executor_ = std::make_unique<ThreadPool>(ThreadPool::Options{
      .name = "peers", .threads = cluster.threads, .queue_capacity = config.rpc.max_in_flight});
  member->answers_ =
      std::make_unique<ThreadPool>(ThreadPool::Options{.name = "peer-answers",
                                                       .threads = kAnswerThreads,
                                                       .queue_capacity = config.rpc.max_in_flight});
  member->links_ = std::make_unique<GrpcPeerLinks>(GrpcPeerLinks::Options{
      .self = self.caller,
      .tls = tls.enabled(),
      .files = {.authorities = cluster.tls_ca.empty() ? tls.client_ca : cluster.tls_ca,
                .certificate = tls.mutual() ? tls.certificate : "",
                .private_key = tls.mutual() ? tls.private_key : "",
                .reload_interval = tls.reload_interval},
      .server_name = cluster.tls_server_name,
      .rule = member->rule_,
      .executor = member->answers_.get()});
  auto opened = NodeLinks::Open(config, node_id, devices, member->links_.get(), &member->timers_);
  if (opened.ok()) {
    member->gpu_links_ = *std::move(opened);
  } else {
    member->no_links_ = Message(opened.status());
  }
  NodeLinks* const gpu_links = member->gpu_links_.get();
  member->cluster_ = std::make_unique<Cluster>(
      Cluster::Options{.self = self,
                       .directory = {.max_bytes = cluster.memory / 4 * 3},
                       .source = {.self = node_id,
                                  .lookup_deadline = cluster.lookup_deadline,
                                  .silence = cluster.silence,
                                  .remembered_blocks = RememberedBlocks(cluster.memory)},
                       .members = {},
                       .announcer = {}},
      Cluster::Dependencies{
          .links = member->links_.get(),
          .timers = &member->timers_,
          .executor = member->executor_.get(),
          .clock = &SteadyClock::Get(),
          .fetcher = gpu_links == nullptr ? nullptr : gpu_links->members().fetcher()});
  ExportLinks(config, gpu_links, member->cluster_.get(), registry);
  ExportCluster(member->cluster_.get(), member->discovery_.get(), memory, registry);
  return member;
}

Status ClusterMember::MakeDiscovery() {
  const ClusterConfig& cluster = config_.cluster;
  const Clock* const clock = &SteadyClock::Get();
  if (cluster.discovery == "static") {
    discovery_ = std::make_unique<membership::StaticDiscovery>(cluster.members, clock);
  } else if (cluster.discovery == "dns") {
    CAIRN_ASSIGN_OR_RETURN(resolver_, membership::CaresResolver::Create(cluster.dns_servers));
    discovery_ = std::make_unique<membership::DnsDiscovery>(
        membership::DnsDiscovery::Options{.names = cluster.dns_names,
                                          .port = static_cast<uint16_t>(cluster.dns_port),
                                          .interval = cluster.dns_interval},
        resolver_.get(), &timers_, clock);
  } else {
    CAIRN_ASSIGN_OR_RETURN(
        discovery_,
        membership::EtcdDiscovery::Create({.etcd = cluster.etcd,
                                           .prefix = fmt::format("cairn/{}/members/", cluster.name),
                                           .ttl = cluster.etcd_ttl}));
  }
  return OkStatus();
}

ClusterMember::~ClusterMember() { StopThreads(); }

void ClusterMember::AddTo(rpc::CallServer* server, RpcContext* rpc) {
  BlockLender* lender = nullptr;
  if (gpu_links_ != nullptr) {
    gpu_links_->AddTo(server, rpc, cluster_.get(), rule_);
    lender = gpu_links_->members().lender();
  }
  peer_reads_ =
      AddPeerService(server, rpc, cluster_.get(), rule_, executor_.get(), &reads_, lender);
}

void ClusterMember::Attach(CacheEngine* engine) {
  timers_.Start();
  cluster_->Attach(engine);
}

Status ClusterMember::Start() {
  const PeerHello self = cluster_->self();
  const membership::Member member{.address = self.address,
                                  .id = self.caller.id,
                                  .epoch = self.epoch,
                                  .incarnation = self.caller.incarnation,
                                  .host = self.host,
                                  .zone = self.zone};
  CAIRN_RETURN_IF_ERROR(
      discovery_->Start(member, [this](const membership::View& view) { cluster_->OnView(view); }));
  discovering_ = true;
  thread_ = std::thread([this] { Run(); });
  log::Info("joins", {{"cluster", self.caller.cluster},
                      {"node_id", self.caller.id},
                      {"address", self.address},
                      {"discovery", config_.cluster.discovery}});
  const TimePoint deadline = SteadyClock::Get().Now() + kSettle;
  MutexLock lock(mu_);
  wake_.WaitUntil(mu_, deadline, [this] { return cluster_->settled(); });
  return OkStatus();
}

void ClusterMember::Run() {
  bool settled = false;
  for (;;) {
    links_->Tick();
    cluster_->Tick();
    peer_reads_->Tick();
    MutexLock lock(mu_);
    if (!settled && cluster_->settled()) {
      settled = true;
      wake_.NotifyAll();
    }
    if (wake_.WaitUntil(mu_, SteadyClock::Get().Now() + kTick,
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; })) {
      return;
    }
  }
}

void ClusterMember::Leave() {
  if (std::exchange(discovering_, false)) discovery_->Stop();
  cluster_->Leave();
}

void ClusterMember::StopThreads() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  if (std::exchange(discovering_, false)) discovery_->Stop();
  // First, so that what does not come over a link ends with the calls.
  if (gpu_links_ != nullptr) gpu_links_->Stop();
  if (links_ != nullptr) links_->Stop();
  if (answers_ != nullptr) answers_->Stop();
  if (executor_ != nullptr) executor_->Stop();
  if (cluster_ != nullptr) cluster_->Detach();
}

}  // namespace cairn::cache
