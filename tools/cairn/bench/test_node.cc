#include "tools/cairn/bench/test_node.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "cairn/client/connect.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/process/ports.h"

namespace cairn::cli::bench {
namespace {

using std::chrono::seconds;
constexpr seconds kPatience(60);
constexpr uint64_t kBytesPerPush = uint64_t{8} << 20;

}  // namespace

Result<TemporaryDirectory> TemporaryDirectory::Make(const std::string& parent) {
  std::error_code error;
  std::string pattern =
      (parent.empty() ? std::filesystem::temp_directory_path(error).string() : parent) +
      "/cairn-bench-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    return Errorf(StatusCode::kInternal, "cannot make a directory like '{}'", pattern);
  }
  TemporaryDirectory directory;
  directory.path_ = pattern;
  return directory;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<std::unique_ptr<TestNode>> TestNode::Start(const BenchOptions& options,
                                                  const NodeNeeds& needs) {
  std::unique_ptr<TestNode> node(new TestNode);
  if (!options.cache.empty()) {
    node->address_ = options.cache;
    node->tls_ = options.tls;
    return node;
  }
  CAIRN_ASSIGN_OR_RETURN(node->directory_, TemporaryDirectory::Make(options.directory));
  // A port of the kernel's choice may be somebody's outgoing connection when the node starts again.
  CAIRN_ASSIGN_OR_RETURN(const auto addresses, FreeLoopbackAddresses(1));
  node->start_.address = addresses.front();
  node->start_.host_bytes = needs.host_bytes;
  if (needs.disk_bytes > 0) {
    node->start_.disk_directory = node->directory_.path() + "/disk";
    node->start_.disk_bytes = needs.disk_bytes;
  }
  node->start_.log_path = node->directory_.path() + "/node.log";
  node->start_.settings = needs.settings;
  // One reader may lease everything: who runs a benchmark has the node to himself.
  node->start_.settings.insert(node->start_.settings.end(),
                               {"--local.session_quota", std::to_string(needs.host_bytes)});
  node->spin_ = options.spin;
  if (options.spin) {
    const auto spin = std::chrono::duration_cast<std::chrono::microseconds>(*options.spin);
    node->start_.settings.insert(node->start_.settings.end(),
                                 {"--local.spin", fmt::format("{}us", spin.count())});
  }
  CAIRN_ASSIGN_OR_RETURN(node->process_, StartCacheNode(node->start_));
  node->address_ = node->process_.address;
  return node;
}

Status TestNode::Restart() {
  process_.child->Kill();
  CAIRN_ASSIGN_OR_RETURN(process_, StartCacheNode(start_));
  return OkStatus();
}

std::vector<pid_t> TestNode::Pids() const {
  if (!own()) return {};
  return {process_.child->pid()};
}

Result<std::unique_ptr<client::CacheClient>> TestNode::Connect(client::PathChoice path,
                                                               const NamespaceSpec& spec) const {
  client::ConnectOptions connection = ConnectionTo(address_, tls_);
  connection.client_name = "cairn-bench";
  connection.tenant = spec.tenant;
  connection.path = path;
  connection.spin = spin_;
  CAIRN_ASSIGN_OR_RETURN(auto client, client::Connect(connection));
  const auto until = std::chrono::steady_clock::now() + seconds(30);
  while (true) {
    // Opening a namespace is what makes a client look for shared memory.
    const auto opened = client->OpenNamespace(spec, {.deadline = seconds(2)});
    // Only the program's own node may have been started a moment ago.
    if (!opened.ok() && !own()) return Annotate(opened.status(), "cache node at " + address_);
    const client::ClientStats now = client->GetStats();
    const bool ready = opened.ok() && now.connected &&
                       (path != client::PathChoice::kLocal || now.path == client::Path::kLocal);
    if (ready) return client;
    if (std::chrono::steady_clock::now() > until) {
      if (!opened.ok()) return Annotate(opened.status(), "cache node at " + address_);
      return Errorf(StatusCode::kUnavailable, "cache node at {}: no {}: {}", address_,
                    now.connected ? "shared memory" : "session", now.path_reason);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Result<std::vector<std::unique_ptr<client::CacheClient>>> ConnectAll(const TestNode& node,
                                                                     const BenchOptions& options,
                                                                     const NamespaceSpec& spec) {
  std::vector<std::unique_ptr<client::CacheClient>> clients;
  for (uint32_t i = 0; i < options.clients; ++i) {
    CAIRN_ASSIGN_OR_RETURN(auto client, node.Connect(options.path, spec));
    clients.push_back(std::move(client));
  }
  return clients;
}

Status Store(client::CacheClient& client, const BlockSet& set, uint64_t generation,
             uint32_t chain) {
  const auto step =
      static_cast<uint32_t>(std::clamp<uint64_t>(kBytesPerPush / set.part_bytes(), 1, 1024));
  for (uint32_t begin = 0; begin < set.blocks(); begin += step) {
    const uint32_t end = std::min(begin + step, set.blocks());
    const auto parts = set.ToPush(generation, begin, end, chain);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Status> stored,
                           client.Push(set.fingerprint(), parts, PatientPush()));
    for (const Status& status : stored) CAIRN_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

client::MatchOptions PatientMatch() {
  client::MatchOptions options;
  options.deadline = kPatience;
  options.lease_ttl = seconds(600);
  return options;
}

client::FetchOptions PatientFetch(bool verify) {
  client::FetchOptions options;
  options.progress = kPatience;
  options.deadline = kPatience;
  options.verify = verify;
  return options;
}

client::PushOptions PatientPush() {
  client::PushOptions options;
  options.deadline = kPatience;
  return options;
}

client::CallOptions PatientCall() { return {.deadline = kPatience}; }

}  // namespace cairn::cli::bench
