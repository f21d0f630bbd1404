#include "services/cache/serve/node/link_setup.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "common/link/lone_thread.h"
#include "common/log/log.h"
#include "common/net/credentials.h"
#include "common/rpc/call.h"
#include "protocol/link/link_service.h"

namespace cairn::cache {
namespace {

Result<std::shared_ptr<const link::nccl::Library>> LoadLibrary(const LinkConfig& config) {
  return link::nccl::Library::Load(
      {.path = config.library, .trusted_network = config.trusted_network});
}

// Processes with the same one reach each other on loopback.
std::string HostName() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char network[64] = {};
  const ssize_t length = readlink("/proc/self/ns/net", network, sizeof(network) - 1);
  if (boot.empty() || length <= 0) {
    // Nobody shares a name that is made of the process: nothing moves without a trusted network.
    return fmt::format("unknown-{}-{}", getpid(),
                       std::chrono::system_clock::now().time_since_epoch().count());
  }
  return boot + " " + network;
}

// Grows with each start of the process.
uint64_t EpochBase() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count())
         << 16;
}

Status Missing(const Status& status) {
  log::Warn("no_links", {{"reason", Message(status)}});
  return status;
}

void ShowMoves(const MemberLinks::Stats& stats, metrics::Sink& sink) {
  const std::string blocks = "cairn_link_blocks_total";
  const std::string blocks_help = "Blocks that moved from GPU to GPU.";
  sink.Counter(blocks, blocks_help, {{"direction", "received"}},
               metrics::Number(stats.received.moved));
  sink.Counter(blocks, blocks_help, {{"direction", "sent"}}, metrics::Number(stats.lent.granted));
  const std::string bytes = "cairn_link_bytes_total";
  const std::string bytes_help = "Bytes of these blocks, with what fills up between parts.";
  sink.Counter(bytes, bytes_help, {{"direction", "received"}},
               metrics::Number(stats.received.moved_bytes));
  sink.Counter(bytes, bytes_help, {{"direction", "sent"}},
               metrics::Number(stats.lent.granted_bytes));
  for (size_t i = 0; i < kMoveFailures.size(); ++i) {
    sink.Counter("cairn_link_failures_total",
                 "Blocks that another member lent, and that did not come over a link.",
                 {{"reason", kMoveFailures[i]}}, metrics::Number(stats.received.failures[i]));
  }
  const std::string lends = "cairn_link_lends_total";
  const std::string lends_help =
      "Blocks that this node laid out for other members, or should have.";
  sink.Counter(lends, lends_help, {{"outcome", "moved"}}, metrics::Number(stats.lent.granted));
  sink.Counter(lends, lends_help, {{"outcome", "expired"}}, metrics::Number(stats.lent.expired));
  sink.Counter(lends, lends_help, {{"outcome", "refused"}}, metrics::Number(stats.lent.refused));
}

void ShowLinks(const MemberLinks::Stats& stats, metrics::Sink& sink) {
  const std::string name = "cairn_links";
  const std::string help = "Links to other members, one for each direction.";
  sink.Gauge(name, help, {{"state", "joining"}}, metrics::Number(stats.links.joining));
  sink.Gauge(name, help, {{"state", "open"}},
             metrics::Number(stats.links.links - stats.links.joining - stats.links.ending));
  sink.Gauge(name, help, {{"state", "ending"}}, metrics::Number(stats.links.ending));
  sink.Gauge(name, help, {{"state", "abandoned"}}, metrics::Number(stats.links.abandoned));
  sink.Counter("cairn_link_opened_total", "Links that were made.", {},
               metrics::Number(stats.links.opened));
  sink.Counter("cairn_link_broken_total", "Links that ended because something went wrong.", {},
               metrics::Number(stats.links.broken));
  sink.Gauge("cairn_link_paused_members",
             "Members whose link broke, and that are left alone for a while.", {},
             metrics::Number(stats.quarantined));
  sink.Gauge("cairn_link_buffer_bytes", "Memory of the GPU for blocks on their way.", {},
             metrics::Number(stats.buffer_bytes));
  sink.Gauge("cairn_link_buffer_used_bytes", "The part of it that is in use.", {},
             metrics::Number(stats.buffer_used));
}

}  // namespace

void PrepareLinks(const NodeConfig& config) {
  if (config.link.enabled) (void)LoadLibrary(config.link);
}

Result<std::unique_ptr<NodeLinks>> NodeLinks::Open(const NodeConfig& config,
                                                   const std::string& node_id, DeviceTier* tier,
                                                   GrpcPeerLinks* peers, Timers* timers) {
  if (!config.link.enabled) return nullptr;
  // Its failure is logged there.
  const auto library = LoadLibrary(config.link);
  if (!library.ok()) return library.status();
  if (tier == nullptr) {
    return Missing(Status(StatusCode::kFailedPrecondition, "there is no device tier"));
  }
  std::unique_ptr<NodeLinks> links(new NodeLinks);
  const auto& device = tier->device_of(0);
  const std::string host = config.link.host.empty() ? HostName() : config.link.host;
  links->maker_ = std::make_unique<link::nccl::Maker>(*library, device);
  links->calls_ = std::make_unique<link::GrpcLinkCalls>(
      node_id, [peers](const std::string& member) { return peers->ChannelTo(member); });
  auto members = MemberLinks::Create(
      {.links = {.host = host, .trusted_network = config.link.trusted_network},
       .history = {.epoch_base = EpochBase()},
       .buffer_bytes = config.link.buffer,
       .timeout = config.link.timeout},
      {.tier = tier,
       .maker = links->maker_.get(),
       .calls = links->calls_.get(),
       .timers = timers,
       .clock = &SteadyClock::Get(),
       .threads = [](const char* name) { return std::make_shared<link::LoneThread>(name); }});
  if (!members.ok()) return Missing(members.status());
  links->members_ = *std::move(members);
  log::Info("links", {{"nccl", link::nccl::VersionText((*library)->version())},
                      {"device", device->info().uuid},
                      {"host", host},
                      {"trusted_network", config.link.trusted_network ? "yes" : "no"},
                      {"buffer_bytes", log::Num(config.link.buffer)}});
  return links;
}

void NodeLinks::AddTo(rpc::CallServer* server, const RpcContext* rpc, Cluster* cluster,
                      PeerRule rule) {
  link::AddLinkService(
      server, rpc, members_->holder(),
      [cluster, rule = std::move(rule)](const rpc::Call& call,
                                        const std::string& claimed) -> Result<std::string> {
        const net::Caller there = net::CallerOf(call.grpc());
        Status fits = rule.Check(there, claimed);
        if (fits.ok() && !cluster->host().Knows(claimed)) {
          fits =
              Errorf(StatusCode::kPermissionDenied,
                     "reader: got '{}', expected the id of a member that this node knows", claimed);
        }
        if (fits.ok()) return claimed;
        call.Rejected(rpc::Rejection::kAuth);
        log::Warn(
            "link_refused",
            {{"node_id", claimed}, {"peer", call.grpc().peer()}, {"identity", there.Describe()}});
        return fits;
      });
}

void NodeLinks::Stop() {
  if (members_ == nullptr) return;
  if (members_->Stop()) return calls_.reset();
  log::Warn("links_hang", {{"communicators", log::Num(members_->stats().links.abandoned)}});
  // A thread that hangs in the library may still come back, and find all it uses.
  (void)members_.release();
  (void)calls_.release();
  (void)maker_.release();
}

void ExportLinks(const NodeConfig& config, NodeLinks* links, Cluster* cluster,
                 metrics::Registry* registry) {
  if (!config.link.enabled) return;
  registry->AddCollector([links, cluster](metrics::Sink& sink) {
    sink.Gauge("cairn_link_up", "1: this node can have links. 0: NCCL or a GPU is missing.", {},
               links == nullptr ? 0 : 1);
    if (links == nullptr) return;
    const MemberLinks::Stats stats = links->members().stats();
    ShowMoves(stats, sink);
    ShowLinks(stats, sink);
    const ClusterView view = cluster->view();
    sink.Counter("cairn_link_fallbacks_total",
                 "Blocks that were lent, and came over gRPC after all.", {},
                 metrics::Number(view.failed_moves));
    sink.Counter("cairn_link_wrong_blocks_total",
                 "Blocks among them that had come with wrong "
                 "bytes.",
                 {}, metrics::Number(view.wrong_moves));
  });
}

}  // namespace cairn::cache
