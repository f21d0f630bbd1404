#include <fstream>
#include <thread>

#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/workloads.h"

namespace cairn::cli::bench {
namespace {

// Resident memory of a process, shared pages included. 0 when it cannot be told.
double ResidentKiB(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6));
  }
  return 0;
}

class Sessions final : public Workload {
 public:
  explicit Sessions(const BenchOptions& options) : options_(options) {}

  Status Prepare() override {
    if (!options_.cache.empty()) {
      return InvalidArgument("--cache: sessions measures the memory of a node of its own");
    }
    CAIRN_ASSIGN_OR_RETURN(const auto set,
                           BlockSet::Make({.block_bytes = options_.block_bytes, .blocks = 1}));
    spec_ = set->spec();
    return OkStatus();
  }

  // A node of its own: memory that earlier sessions left would be used again and not be seen.
  Result<std::vector<Metric>> Trial(double) override {
    // The arena is not touched, so that all that grows is the sessions'.
    const NodeNeeds needs = {
        .host_bytes = uint64_t{64} << 20,
        .settings = {"--host.prefault", "false", "--limits.sessions",
                     std::to_string(options_.clients + kWarmUp + 8), "--limits.session_memory",
                     fmt::format("{}MiB", 2 * (options_.clients + kWarmUp + 8))}};
    CAIRN_ASSIGN_OR_RETURN(node_, TestNode::Start(options_, needs));
    BenchOptions some = options_;
    some.clients = kWarmUp;
    CAIRN_ASSIGN_OR_RETURN(const auto first, ConnectAll(*node_, some, spec_));
    CAIRN_RETURN_IF_ERROR(WaitForSessions(*first[0], kWarmUp));
    const double before = ResidentKiB(node_->Pids()[0]);
    const auto start = std::chrono::steady_clock::now();
    CAIRN_ASSIGN_OR_RETURN(const auto clients, ConnectAll(*node_, options_, spec_));
    CAIRN_RETURN_IF_ERROR(WaitForSessions(*first[0], kWarmUp + options_.clients));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double after = ResidentKiB(node_->Pids()[0]);
    path_ = clients.back()->GetStats().path;
    const double count = options_.clients;
    return std::vector<Metric>{{"memory", "KiB/session", (after - before) / count},
                               {"open", "ms/session", took.count() * 1e3 / count}};
  }

  std::vector<pid_t> Children() const override {
    return node_ ? node_->Pids() : std::vector<pid_t>{};
  }

  std::vector<std::pair<std::string, std::string>> Facts() const override {
    return {{"path", std::string(client::Name(path_))}};
  }

 private:
  // The first sessions make some memory grow for good: thread stacks, pools.
  static constexpr uint32_t kWarmUp = 16;

  static Status WaitForSessions(client::CacheClient& client, uint64_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(const client::NodeStats stats, client.Stat(PatientCall()));
      if (stats.sessions >= count) return OkStatus();
      if (std::chrono::steady_clock::now() > until) {
        return Errorf(StatusCode::kDeadlineExceeded, "{} sessions are open, expected {}",
                      stats.sessions, count);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  const BenchOptions options_;
  NamespaceSpec spec_;
  std::unique_ptr<TestNode> node_;
  client::Path path_ = client::Path::kGrpc;
};

}  // namespace

std::unique_ptr<Workload> NewSessions(const BenchOptions& options) {
  return std::make_unique<Sessions>(options);
}

}  // namespace cairn::cli::bench
