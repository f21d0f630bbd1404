#include "tools/cairn/demo/cluster.h"

#include "cairn/client/connect.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/process/ports.h"
#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

constexpr std::chrono::seconds kCall(10);
constexpr std::chrono::seconds kFlush(120);

uint64_t HostEvictions(const client::NodeStats& stats) {
  uint64_t evicted = 0;
  for (const client::TierStat& tier : stats.tiers) {
    if (tier.tier == client::TierKind::kHost) evicted += tier.evicted_blocks;
  }
  return evicted;
}

}  // namespace

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const Options& options) {
  std::vector<std::string> argv = {SiblingProgram("cairn-worker"), "--model", options.model_path,
                                   "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
                                   // On a slow machine sixteen chats at once wait for minutes.
                                   "--queue.max_wait", "0s"};
  if (!options.cache.empty()) {
    // A busy machine may take longer than the default 50 ms to answer a match, and 250 ms to send;
    // a demo shows the cache, not the breaker. And it shows fetching: a small model computes faster
    // than it fetches.
    argv.insert(argv.end(), {"--cache", options.cache, "--cache.match_deadline", "1s",
                             "--cache.stall_deadline", "1s", "--cache.choose", "false"});
  }
  if (options.threads > 0) argv.insert(argv.end(), {"--threads", std::to_string(options.threads)});
  argv.insert(argv.end(), options.settings.begin(), options.settings.end());
  CAIRN_ASSIGN_OR_RETURN(
      auto child, Child::Start({.name = "cairn-worker",
                                .argv = argv,
                                .log_path = options.log_directory + "/" + options.name + ".log"}));
  CAIRN_ASSIGN_OR_RETURN(const auto ready, child->WaitReady(std::chrono::seconds(120)));
  const auto address = ready.find("grpc");
  if (address == ready.end()) {
    return Errorf(StatusCode::kInternal, "cairn-worker does not say where it listens");
  }
  CAIRN_ASSIGN_OR_RETURN(auto generator, ConnectWorker(address->second));
  return std::unique_ptr<WorkerProcess>(
      new WorkerProcess(std::move(child), address->second, std::move(generator)));
}

NodeTraffic Difference(const client::NodeStats& before, const client::NodeStats& after) {
  return {.bytes = after.fetched_bytes - before.fetched_bytes,
          .host = after.fetched_host_bytes - before.fetched_host_bytes,
          .disk = after.fetched_disk_bytes - before.fetched_disk_bytes,
          .evicted_blocks = HostEvictions(after) - HostEvictions(before),
          .promoted_blocks = after.promoted_blocks - before.promoted_blocks};
}

uint64_t BytesPerToken(const Layout& layout) {
  uint64_t bytes = 0;  // The bytes of a block.
  for (uint32_t layer = 0; layer < layout.Layers(); ++layer) {
    bytes += layout.SliceBytes(layer, 0, layout.KvHeads());
  }
  return bytes / layout.block_tokens;
}

double BitsPerNumber(const client::NamespaceInfo& info) {
  const Layout& layout = info.spec.layout;
  uint64_t numbers = 0;  // The numbers of one token.
  for (uint32_t layer = 0; layer < layout.Layers(); ++layer) {
    for (const Plane& plane : layout.PlanesOf(layer)) numbers += uint64_t{plane.heads} * plane.dim;
  }
  if (info.blocks == 0) return 0;
  return static_cast<double>(info.bytes) * 8 /
         static_cast<double>(numbers * info.blocks * layout.block_tokens);
}

Status DemoNode::Start(uint64_t host_bytes) {
  if (external()) {
    address_ = options_.external;
  } else {
    if (address_.empty()) {
      // A port of the kernel's choice may be somebody's outgoing connection at the next start.
      CAIRN_ASSIGN_OR_RETURN(const auto addresses, FreeLoopbackAddresses(1));
      address_ = addresses.front();
    }
    CAIRN_ASSIGN_OR_RETURN(process_, StartCacheNode({.address = address_,
                                                     .host_bytes = host_bytes,
                                                     .disk_directory = options_.disk_directory,
                                                     .log_path = options_.log_path,
                                                     .settings = options_.settings}));
    address_ = process_.address;
  }
  CAIRN_ASSIGN_OR_RETURN(client_, client::Connect(ConnectionTo(address_)));
  CAIRN_ASSIGN_OR_RETURN(admin_, client::ConnectAdmin(ConnectionTo(address_)));
  CAIRN_ASSIGN_OR_RETURN(cluster_, client::ConnectCluster(ConnectionTo(address_)));
  return Stat().status();
}

void DemoNode::Kill() {
  client_.reset();
  admin_.reset();
  cluster_.reset();
  process_.child->Kill();
}

Result<client::NodeStats> DemoNode::Stat() {
  auto stats = client_->Stat({.deadline = kCall, .trace = ""});
  if (!stats.ok()) return Annotate(stats.status(), "cache node at " + address_);
  return stats;
}

Result<client::ClusterMembers> DemoNode::Members() {
  auto members = cluster_->Members({.deadline = kCall, .trace = ""});
  if (!members.ok()) return Annotate(members.status(), "cache node at " + address_);
  return members;
}

Result<client::NamespaceInfo> DemoNode::Namespace(const std::string& fingerprint) {
  const auto all = admin_->ListNamespaces("", {.deadline = kCall, .trace = ""});
  if (!all.ok()) return Annotate(all.status(), "cache node at " + address_);
  for (const client::NamespaceInfo& info : *all) {
    if (info.fingerprint.View() == fingerprint) return info;
  }
  return Errorf(StatusCode::kNotFound, "the cache node at {} does not know the worker's namespace",
                address_);
}

Status DemoNode::Flush() {
  return Annotate(client_->Flush({.deadline = kFlush, .trace = ""}), "flush");
}

}  // namespace cairn::cli
