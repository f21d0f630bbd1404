#include <fmt/ranges.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <fstream>

#include "cairn/client/connect.h"
#include "cairn/v1/router.grpc.pb.h"
#include "cairn/v1/worker.grpc.pb.h"
#include "tests/fault/adversary/honest_asks.h"
#include "tests/fault/adversary/honest_blocks.h"
#include "tests/fault/adversary/stage.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/support/etcd_cluster.h"

namespace cairn::fault {
namespace {

constexpr size_t kNodes = 3;
constexpr size_t kWorkers = 2;
// Sessions that a node opens itself: for each other member, for callers that are none, and for
// calls of Locate. They end when they were not used for a while, the last one never.
constexpr uint64_t kOwnSessions = kNodes - 1 + 2;
constexpr char kModel[] = "tests/data/gguf/kquant.gguf";
// What a router or worker needs beside the items that have a setting: the program, its threads, the
// vocabulary, and memory that the allocator keeps.
constexpr uint64_t kProcessBytes = 160ull << 20;

// A flag for a size, and how many times it counts in the account.
struct MemoryFlag {
  const char* flag;
  uint64_t mebibytes;
  uint64_t times;
};
// As much for messages that arrive as for requests under way (docs/operate/config-router.md).
constexpr MemoryFlag kRpcRequests{"--rpc.requests", 32, 2};
const std::vector<MemoryFlag> kWorkerMemory = {
    {"--kv_pool", 64, 1}, {"--parking", 16, 1}, {"--cache.push_queue", 32, 1}, kRpcRequests};
const std::vector<MemoryFlag> kRouterMemory = {{"--index", 16, 1},
                                               {"--token_cache", 16, 1},
                                               {"--http.all_bodies", 64, 1},
                                               {"--http.all_unread", 16, 1},
                                               {"--all_answers", 32, 1},
                                               {"--tenant_text", 8, 0},
                                               kRpcRequests};
const std::vector<MemoryFlag> kPickerMemory = {{"--picker.all_bodies", 32, 1}};

uint64_t AccountOf(const std::vector<MemoryFlag>& flags) {
  uint64_t bytes = kProcessBytes;
  for (const MemoryFlag& flag : flags) bytes += (flag.mebibytes << 20) * flag.times;
  return bytes;
}

void AddFlags(const std::vector<MemoryFlag>& flags, std::vector<std::string>* args) {
  for (const MemoryFlag& flag : flags) {
    args->insert(args->end(), {flag.flag, fmt::format("{}MiB", flag.mebibytes)});
  }
}

// API keys, and their SHA-256.
constexpr char kHonestKey[] = "honest-key";
constexpr char kHonestSha[] = "af9c1a1681726e9e36ea12c5be4363b00796ab3062af2c6e8dc46cda17e787f9";
constexpr char kRelayKey[] = "relay-key";
constexpr char kRelaySha[] = "f03f5ae3ec5478bc0baf12a049cba5844090fc9b751a19b3a0e3e2113cbb1cc5";
constexpr char kHostileKey[] = "hostile-key";
constexpr char kHostileSha[] = "3563c2b59f3c62e187bb7b6e0fac1a73e2c0900ffc7df2c4417e30b9d75e4949";

// Blocks of 49 KB in chains of 768 tokens, so that members tell each other of one or two of them.
FaultModelOptions BlocksOf(const std::string& tenant) {
  return {.tenant = tenant,
          .model = "honest",
          .layers = 4,
          .kv_heads = 3,
          .dim = 8,
          .block_tokens = 128,
          .roots = 4096,
          .branching = 8,
          .depth = 6};
}

std::shared_ptr<grpc::Channel> ChannelTo(const TestedServer& server) {
  return grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials());
}

class ClusterStage final : public Stage {
 public:
  Status Start() {
    CAIRN_RETURN_IF_ERROR(StartNodes());
    CAIRN_RETURN_IF_ERROR(StartWorkers());
    CAIRN_ASSIGN_OR_RETURN(answers_, AskAll(places_.workers[0]->address()));
    CAIRN_RETURN_IF_ERROR(StartRouter());
    CAIRN_RETURN_IF_ERROR(StartRelay());
    // What stands before others ends first.
    std::reverse(servers_.begin(), servers_.end());
    return OkStatus();
  }

  const std::vector<WatchedServer>& servers() const override { return servers_; }
  const Places& places() const override { return places_; }
  std::vector<std::string> ports() const override {
    return {"http", "relay", "router", "picker", "worker", "node", "member", "admin"};
  }
  std::unique_ptr<HonestLoad> NewLoad(const std::string& port, const LoadOptions& options) override;
  std::string StillHeld(size_t honest, milliseconds timeout) override;
  void DropHostile() override {
    for (const TestedServer* node : places_.nodes) DropHostileTenants(node->address());
  }
  std::string Silent() override;

 private:
  // Adds it to servers_. Returns it.
  Result<TestedServer*> Add(const std::string& name, const TestedServer::Options& options,
                            uint64_t account_bytes);
  Status StartNodes();
  Status StartWorkers();
  Status StartRouter();
  Status StartRelay();
  // Empty, or what a node still holds.
  std::string HeldAt(size_t node);
  // Requests that the router has not ended.
  Result<uint64_t> Active(const TestedServer& router) const;
  // Until `server` has `workers` that are ready.
  Status WaitReady(const TestedServer& router, int workers) const;
  // Until the router has a session at each node, so that later ones are not its own.
  Status WaitFollowed() const;
  std::string File(const std::string& name, const std::string& text) const;

  const testing::TemporaryDirectory directory_;
  std::vector<WatchedServer> servers_;
  Places places_;
  std::vector<std::unique_ptr<client::CacheClient>> operators_;  // One for each node.
  std::vector<uint64_t> sessions_;  // Of each node, without hostile clients.
  std::vector<KnownAnswer> answers_;
};

std::string ClusterStage::File(const std::string& name, const std::string& text) const {
  const std::string path = directory_.path() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

Result<TestedServer*> ClusterStage::Add(const std::string& name,
                                        const TestedServer::Options& options,
                                        uint64_t account_bytes) {
  CAIRN_ASSIGN_OR_RETURN(auto server, TestedServer::Start(options));
  servers_.push_back({name, std::move(server), account_bytes});
  return servers_.back().server.get();
}

Status ClusterStage::StartNodes() {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < kNodes; ++i) {
    addresses.push_back(fmt::format("127.0.0.1:{}", testing::FreePort()));
  }
  for (size_t i = 0; i < kNodes; ++i) {
    const std::string folder = fmt::format("{}/node-{}", directory_.path(), i);
    TestedServer::Options options{.address = addresses[i]};
    options.args = {"--node.id",
                    fmt::format("node-{}", i),
                    "--local.socket",
                    folder + ".sock",
                    "--disk.path",
                    folder,
                    "--cluster.discovery",
                    "static",
                    "--cluster.members",
                    fmt::format("{}", fmt::join(addresses, ",")),
                    "--admin.allow_loopback",
                    "false",
                    "--host.prefault",
                    "false",
                    "--host.capacity",
                    "256MiB",
                    "--disk.capacity",
                    "512MiB",
                    "--disk.min_free",
                    "0",
                    "--index.capacity",
                    "16MiB",
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
                    "--cluster.memory",
                    "16MiB"};
    CAIRN_ASSIGN_OR_RETURN(TestedServer* const node,
                           Add(fmt::format("node-{}", i), options, /*account_bytes=*/0));
    CAIRN_ASSIGN_OR_RETURN(servers_.back().account_bytes, NodeAccount(*node));
    places_.nodes.push_back(node);
    operators_.push_back(ConnectTo(node->address(), "operator"));
  }
  return OkStatus();
}

Status ClusterStage::StartWorkers() {
  for (size_t i = 0; i < kWorkers; ++i) {
    TestedServer::Options options{.program = "cairn-worker"};
    options.args = {"--model", kModel, "--threads", "1", "--cache.address",
                    places_.nodes[i]->address(), "--tenant", "honest-workers", "--queue.capacity",
                    "64",
                    // No tenant takes all places of the queue.
                    "--queue.tenant_capacity", "16", "--drain", "5s"};
    AddFlags(kWorkerMemory, &options.args);
    CAIRN_ASSIGN_OR_RETURN(TestedServer* const worker,
                           Add(fmt::format("worker-{}", i), options, AccountOf(kWorkerMemory)));
    places_.workers.push_back(worker);
  }
  return OkStatus();
}

Status ClusterStage::StartRouter() {
  places_.key = kHostileKey;
  places_.router_http = fmt::format("127.0.0.1:{}", testing::FreePort());
  TestedServer::Options options{.program = "cairn-router"};
  options.args = {"--model",
                  kModel,
                  "--workers",
                  places_.workers[0]->address() + "," + places_.workers[1]->address(),
                  "--cache",
                  places_.nodes[0]->address(),
                  "--http.listen",
                  places_.router_http,
                  "--http.api_keys",
                  File("router.keys", fmt::format("honest-http {}\nrelay {}\nhostile {}\n",
                                                  kHonestSha, kRelaySha, kHostileSha)),
                  "--http.max_connections",
                  "256",
                  "--drain",
                  "5s"};
  AddFlags(kRouterMemory, &options.args);
  CAIRN_ASSIGN_OR_RETURN(places_.router, Add("router", options, AccountOf(kRouterMemory)));
  CAIRN_RETURN_IF_ERROR(WaitReady(*places_.router, kWorkers));
  return WaitFollowed();
}

Status ClusterStage::WaitFollowed() const {
  for (size_t i = 0; i < kNodes; ++i) {
    // The operator, the router, and perhaps a worker.
    const uint64_t expected = i < kWorkers ? 3 : 2;
    const bool followed = WaitUntil(
        [&] {
          const auto stats = operators_[i]->Stat({.deadline = seconds(5)});
          return stats.ok() && stats->sessions >= expected;
        },
        seconds(60));
    if (!followed) {
      return Errorf(StatusCode::kUnavailable, "node-{} has no {} sessions", i, expected);
    }
  }
  return OkStatus();
}

Status ClusterStage::StartRelay() {
  places_.relay_http = fmt::format("127.0.0.1:{}", testing::FreePort());
  places_.picker = fmt::format("127.0.0.1:{}", testing::FreePort());
  TestedServer::Options options{.program = "cairn-router"};
  options.args = {
      "--workers",
      "http://" + places_.router_http,
      "--http.listen",
      places_.relay_http,
      "--http.api_keys",
      File("relay.keys", fmt::format("honest-relay {}\nhostile {}\n", kHonestSha, kHostileSha)),
      "--engines.api_key_file",
      File("engine.key", kRelayKey),
      "--http.max_connections",
      "256",
      "--picker.listen",
      places_.picker,
      "--drain",
      "5s"};
  std::vector<MemoryFlag> memory = kRouterMemory;
  memory.insert(memory.end(), kPickerMemory.begin(), kPickerMemory.end());
  AddFlags(memory, &options.args);
  CAIRN_ASSIGN_OR_RETURN(places_.relay, Add("relay", options, AccountOf(memory)));
  return WaitReady(*places_.relay, 1);
}

Status ClusterStage::WaitReady(const TestedServer& router, int workers) const {
  const auto stub = v1::Router::NewStub(ChannelTo(router));
  v1::RouterInfo info;
  const bool ready = WaitUntil(
      [&] {
        CallContext context({}, seconds(5));
        return stub->GetInfo(context.get(), v1::RouterInfoRequest(), &info).ok() &&
               std::count_if(info.workers().begin(), info.workers().end(),
                             [](const auto& one) { return one.condition() == "ready"; }) >= workers;
      },
      seconds(60));
  if (ready) return OkStatus();
  return Errorf(StatusCode::kUnavailable, "the router has no {} workers: {}", workers,
                info.ShortDebugString());
}

std::unique_ptr<HonestLoad> ClusterStage::NewLoad(const std::string& port,
                                                  const LoadOptions& options) {
  const bool few = options.threads == 0;
  HonestLoad::Options load{.name = options.name,
                           .port = port,
                           .threads = few ? 1 : options.threads,
                           .seed = options.seed,
                           .pause = milliseconds(few ? 5 : 0),
                           // Eight processes share what is often two cores.
                           .longest_call = seconds(6)};
  const auto run = [&load](const TestedServer* server, std::unique_ptr<HonestClient> client) {
    return std::make_unique<HonestLoad>(server, std::move(client), std::move(load));
  };
  if (port == "node" || port == "member") {
    // One tenant at two nodes: each reads what the other one has.
    const std::string tenant = options.name.substr(0, options.name.rfind('-')) + "-blocks";
    const TestedServer* const node = places_.nodes[port == "node" ? 0 : 1];
    return run(node, std::make_unique<HonestBlocks>(
                         *node, HonestBlocks::Options{.model = BlocksOf(tenant),
                                                      .path = client::PathChoice::kGrpc}));
  }
  if (port == "http") {
    return run(places_.router, NewHttpAsks(places_.router_http, kHonestKey, answers_));
  }
  if (port == "relay") {
    return run(places_.relay, NewHttpAsks(places_.relay_http, kHonestKey, answers_));
  }
  if (port == "router") {
    return run(places_.router, NewRouterAsks(places_.router->address(), options.name, answers_));
  }
  if (port == "worker") {
    const TestedServer* const worker = places_.workers[1];
    return run(worker, NewWorkerAsks(worker->address(), options.name, answers_));
  }
  if (port == "picker") {
    return run(places_.relay, NewPickerAsks(places_.picker, places_.router_http, answers_));
  }
  std::vector<std::string> admins;
  for (const WatchedServer& watched : servers_) admins.push_back(watched.server->admin());
  return run(places_.router, NewScrapes(admins));
}

std::string ClusterStage::HeldAt(size_t node) {
  const auto stats = operators_[node]->Stat({.deadline = seconds(5)});
  if (!stats.ok()) return fmt::format("node-{}: {}", node, ToString(stats.status()));
  const bool counted = sessions_.size() == kNodes;
  const uint64_t most = counted ? sessions_[node] + kOwnSessions : UINT64_MAX;
  if (stats->leases == 0 && stats->reservations == 0 && stats->sessions <= most) return "";
  return fmt::format("node-{}: {}", node, Describe(*stats));
}

Result<uint64_t> ClusterStage::Active(const TestedServer& router) const {
  CallContext context({}, seconds(5));
  v1::RouterInfo info;
  const grpc::Status status = v1::Router::NewStub(ChannelTo(router))
                                  ->GetInfo(context.get(), v1::RouterInfoRequest(), &info);
  if (!status.ok()) return Errorf(StatusCode::kUnavailable, "{}", status.error_message());
  return info.requests_active();
}

std::string ClusterStage::StillHeld(size_t, milliseconds timeout) {
  std::string held;
  const auto find = [&] {
    held.clear();
    for (const TestedServer* router : {places_.relay, places_.router}) {
      const Result<uint64_t> active = Active(*router);
      if (active.ok() && *active == 0) continue;
      held += active.ok() ? fmt::format("{} requests; ", *active) : ToString(active.status());
    }
    for (const TestedServer* worker : places_.workers) {
      CallContext context({}, seconds(5));
      v1::WaitIdleRequest request;
      v1::WaitIdleResponse response;
      request.set_timeout_ms(1000);
      const grpc::Status status =
          v1::Worker::NewStub(ChannelTo(*worker))->WaitIdle(context.get(), request, &response);
      if (!status.ok() || !response.idle()) held += "a worker is not idle; ";
    }
    for (size_t i = 0; i < kNodes; ++i) held += HeldAt(i);
    return held.empty();
  };
  WaitUntil(find, timeout);
  for (size_t i = sessions_.size(); i < kNodes; ++i) {
    const auto stats = operators_[i]->Stat({.deadline = seconds(5)});
    if (!stats.ok()) break;  // Counted next time.
    sessions_.push_back(stats->sessions);
  }
  return held;
}

std::string ClusterStage::Silent() {
  std::string silent;
  for (size_t i = 0; i < kNodes; ++i) {
    const auto stats = operators_[i]->Stat({.deadline = seconds(5)});
    if (!stats.ok()) silent += fmt::format("node-{}: {}; ", i, ToString(stats.status()));
  }
  for (const TestedServer* router : {places_.relay, places_.router}) {
    const Result<uint64_t> active = Active(*router);
    if (!active.ok()) silent += "a router: " + ToString(active.status());
  }
  operators_.clear();
  return silent;
}

}  // namespace

Result<std::unique_ptr<Stage>> StartClusterStage() {
  auto stage = std::make_unique<ClusterStage>();
  CAIRN_RETURN_IF_ERROR(stage->Start());
  return stage;
}

}  // namespace cairn::fault
