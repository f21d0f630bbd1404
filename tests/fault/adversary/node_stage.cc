#include <cstdlib>
#include <set>

#include "cairn/client/connect.h"
#include "common/metrics/admin_server.h"
#include "tests/fault/adversary/honest_blocks.h"
#include "tests/fault/adversary/stage.h"

namespace cairn::fault {
namespace {

// What the node needs beside the items that have a setting (docs/operate/operations.md).
constexpr uint64_t kProcessBytes = 196ull << 20;
constexpr uint64_t kManyBlocks = 100;  // In host.
constexpr char kLocal[] = "local";

const std::vector<std::string>& NodeArgs() {
  static const std::vector<std::string> kArgs = {"--admin.allow_loopback",
                                                 "true",
                                                 "--host.capacity",
                                                 "512MiB",
                                                 "--host.prefault",
                                                 "false",
                                                 "--disk.capacity",
                                                 "1GiB",
                                                 "--disk.min_free",
                                                 "0",
                                                 "--index.capacity",
                                                 "32MiB",
                                                 "--rpc.memory",
                                                 "64MiB",
                                                 "--limits.transfers",
                                                 "32MiB",
                                                 "--limits.namespaces",
                                                 "512",
                                                 "--lease.default_ttl",
                                                 "5s",
                                                 "--reservation.default_ttl",
                                                 "5s",
                                                 "--log.level",
                                                 "info"};
  return kArgs;
}

FaultModelOptions ModelOf(const std::string& tenant) {
  return {.tenant = tenant,
          .model = "honest",
          .layers = 4,
          .kv_heads = 3,
          .dim = 32,
          .roots = 4096,
          .branching = 8,
          .depth = 6};
}

class NodeStage final : public Stage {
 public:
  Status Start() {
    std::vector<std::string> args = {"--local.socket", directory_.path() + "/node.sock",
                                     "--disk.path", directory_.path() + "/disk"};
    args.insert(args.end(), NodeArgs().begin(), NodeArgs().end());
    CAIRN_ASSIGN_OR_RETURN(auto node, TestedServer::Start({.args = args}));
    CAIRN_ASSIGN_OR_RETURN(const uint64_t account, NodeAccount(*node));
    places_.nodes = {node.get()};
    operator_ = ConnectTo(node->address(), "operator");
    servers_.push_back({"node", std::move(node), account});
    return OkStatus();
  }

  const std::vector<WatchedServer>& servers() const override { return servers_; }
  const Places& places() const override { return places_; }
  std::vector<std::string> ports() const override { return {"grpc", kLocal}; }
  std::unique_ptr<HonestLoad> NewLoad(const std::string& port,
                                      const LoadOptions& options) override {
    const bool few = options.threads == 0;
    auto blocks = std::make_unique<HonestBlocks>(
        node(), HonestBlocks::Options{.model = ModelOf(options.name),
                                      .path = port == kLocal ? client::PathChoice::kAuto
                                                             : client::PathChoice::kGrpc});
    return std::make_unique<HonestLoad>(&node(), std::move(blocks),
                                        HonestLoad::Options{.name = options.name,
                                                            .port = port,
                                                            .threads = few ? 2 : options.threads,
                                                            .seed = options.seed,
                                                            .pause = milliseconds(few ? 2 : 0)});
  }

  std::string StillHeld(size_t honest, milliseconds timeout) override {
    return fault::StillHeld(*operator_, 1 + honest, timeout);
  }
  std::string Holders() override {
    const auto admin = client::ConnectAdmin({.address = node().address()});
    const auto namespaces = (*admin)->ListNamespaces("", {.deadline = seconds(10)});
    if (!namespaces.ok()) return "";
    std::string holders;
    for (const client::NamespaceInfo& info : *namespaces) {
      if (info.host_blocks < kManyBlocks) continue;
      holders += fmt::format("; {} has {} blocks, and {} MiB of its own", info.spec.tenant,
                             info.host_blocks, info.tenant_host_bytes >> 20);
    }
    return holders;
  }
  void DropHostile() override { DropHostileTenants(node().address()); }
  std::string Silent() override {
    const Result<client::NodeStats> stats = operator_->Stat({.deadline = seconds(5)});
    return stats.ok() ? "" : "the node: " + ToString(stats.status());
  }

 private:
  TestedServer& node() const { return *places_.nodes[0]; }

  const testing::TemporaryDirectory directory_;
  std::vector<WatchedServer> servers_;
  Places places_;
  std::unique_ptr<client::CacheClient> operator_;
};

}  // namespace

void DropHostileTenants(const std::string& address) {
  const auto admin = client::ConnectAdmin({.address = address});
  const auto namespaces = (*admin)->ListNamespaces("", {.deadline = seconds(10)});
  if (!namespaces.ok()) return;
  std::set<std::string> tenants;
  for (const client::NamespaceInfo& info : *namespaces) tenants.insert(info.spec.tenant);
  for (const std::string& tenant : tenants) {
    if (tenant.rfind("honest-", 0) != 0) {
      (void)(*admin)->DropTenant(tenant, {.deadline = seconds(10)});
    }
  }
}

Result<uint64_t> NodeAccount(const TestedServer& node) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         metrics::HttpGet(node.admin(), "/metrics", seconds(60)));
  constexpr std::string_view kName = "cairn_memory_bound_bytes{";
  double sum = 0;
  for (size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at + 1)) {
    const size_t end = std::min(text.find('\n', at), text.size());
    sum += std::strtod(text.c_str() + text.rfind(' ', end) + 1, nullptr);
  }
  if (sum == 0) return Errorf(StatusCode::kNotFound, "/metrics: no cairn_memory_bound_bytes");
  return static_cast<uint64_t>(sum) + kProcessBytes;
}

Result<std::unique_ptr<Stage>> StartNodeStage() {
  auto stage = std::make_unique<NodeStage>();
  CAIRN_RETURN_IF_ERROR(stage->Start());
  return stage;
}

}  // namespace cairn::fault
