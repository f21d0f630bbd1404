#include "tests/fault/support/fault_support.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "common/log/log.h"
#include "common/metrics/admin_server.h"

namespace cairn::fault {
namespace {

using SteadyTime = std::chrono::steady_clock;
constexpr uint64_t kPage = 4096;

// Asks until `good`, and says what was last seen when it never was.
std::string PollStats(client::CacheClient& client, milliseconds timeout,
                      const std::function<bool(const client::NodeStats&)>& good) {
  std::string last = "the node was not asked";
  const bool reached = WaitUntil(
      [&] {
        const Result<client::NodeStats> stats = client.Stat({.deadline = seconds(2)});
        if (!stats.ok()) {
          last = ToString(stats.status());
          return false;
        }
        last = Describe(*stats);
        return good(*stats);
      },
      timeout);
  return reached ? std::string() : last;
}

}  // namespace

uint32_t Rounds(uint32_t normal) {
  const char* text = std::getenv("CAIRN_FAULT_ROUNDS");
  if (text == nullptr) return normal;
  return std::max<uint32_t>(1,
                            static_cast<uint32_t>(std::strtoull(text, nullptr, 10) * normal / 100));
}

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("CAIRN_FAULT_SEED");
    const uint64_t value =
        text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
    std::printf("CAIRN_FAULT_SEED=%llu\n", static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

bool WaitUntil(const std::function<bool()>& condition, milliseconds timeout) {
  const auto deadline = SteadyTime::now() + timeout;
  while (!condition()) {
    if (SteadyTime::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

Result<std::unique_ptr<Node>> Node::Start(std::vector<std::string> args) {
  std::unique_ptr<Node> node(new Node());
  node->args_ = std::move(args);
  node->args_.insert(node->args_.begin(), {"--log.level", "error"});
  const auto begin = SteadyTime::now();
  CAIRN_ASSIGN_OR_RETURN(node->node_, CacheNode::Start(node->args_));
  node->start_seconds_ = Seconds(SteadyTime::now() - begin);
  return node;
}

Status Node::Restart() {
  std::vector<std::string> args = args_;
  args.insert(args.end(), {"--listen", node_->address(), "--admin.listen", node_->admin()});
  const auto begin = SteadyTime::now();
  CAIRN_ASSIGN_OR_RETURN(node_, CacheNode::Start(args));
  start_seconds_ = Seconds(SteadyTime::now() - begin);
  return OkStatus();
}

Status Node::Stop() {
  process().Signal(SIGTERM);
  CAIRN_ASSIGN_OR_RETURN(const testing::ExitStatus exit, process().WaitExit(seconds(120)));
  if (exit.exited && exit.code == 0) return OkStatus();
  return Errorf(StatusCode::kInternal, "the node ended with {} {}: {}",
                exit.exited ? "code" : "signal", exit.code, process().err());
}

Result<double> Node::Metric(const std::string& name, const std::string& labels) const {
  return SumOfMetric(admin(), name, labels);
}

Result<double> SumOfMetric(const std::string& admin, const std::string& name,
                           const std::string& labels) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, metrics::HttpGet(admin, "/metrics", seconds(60)));
  double sum = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.rfind(name, 0) != 0 || (line[name.size()] != '{' && line[name.size()] != ' '))
      continue;
    if (line.find(labels) == std::string::npos) continue;
    sum += std::strtod(line.c_str() + line.rfind(' ') + 1, nullptr);
  }
  return sum;
}

std::unique_ptr<client::CacheClient> ConnectTo(const std::string& address,
                                               const std::string& name) {
  log::Configure({.level = log::Level::kError});  // That nodes go away is what happens here.
  client::ConnectOptions options{.address = address, .client_name = name};
  options.breaker = {
      .failures = 3, .first_backoff = milliseconds(10), .max_backoff = milliseconds(50)};
  options.max_reconnect_backoff = milliseconds(50);
  auto client = client::Connect(options);
  CAIRN_CHECK(client.ok());
  return *std::move(client);
}

std::unique_ptr<client::CacheClient> ConnectAndOpen(const std::string& address,
                                                    const FaultModel& model) {
  auto client = ConnectTo(address);
  // Remembered, so a node that is slow to start only makes the first calls fail.
  WaitUntil([&] { return client->OpenNamespace(model.spec()).ok(); }, seconds(120));
  return client;
}

Result<std::unique_ptr<Loader>> Loader::Start(const std::string& address,
                                              const FaultModelOptions& model, uint64_t seed,
                                              const std::vector<std::string>& args) {
  std::unique_ptr<Loader> loader(new Loader());
  std::vector<std::string> argv = {testing::Binary("cairn_fault_load"),
                                   "--address",
                                   address,
                                   "--seed",
                                   std::to_string(seed),
                                   "--tenant",
                                   model.tenant,
                                   "--model",
                                   model.model,
                                   "--layers",
                                   std::to_string(model.layers),
                                   "--kv_heads",
                                   std::to_string(model.kv_heads),
                                   "--dim",
                                   std::to_string(model.dim),
                                   "--depth",
                                   std::to_string(model.depth)};
  argv.insert(argv.end(), args.begin(), args.end());
  CAIRN_ASSIGN_OR_RETURN(loader->process_, Process::Start({.argv = argv}));
  CAIRN_RETURN_IF_ERROR(loader->process_->WaitForLine("ready", seconds(120)).status());
  return loader;
}

const std::map<uint64_t, uint64_t>& Loader::Flushed() {
  const std::string& out = process_->out();
  for (size_t end = out.find('\n', parsed_); end != std::string::npos;
       end = out.find('\n', parsed_)) {
    unsigned long long prompt = 0, blocks = 0;
    if (std::sscanf(out.c_str() + parsed_, "flushed %llu %llu", &prompt, &blocks) == 2) {
      uint64_t& known = flushed_[prompt];
      known = std::max<uint64_t>(known, blocks);
    }
    parsed_ = end + 1;
  }
  return flushed_;
}

Result<std::string> Loader::Finish() {
  process_->Signal(SIGTERM);
  CAIRN_ASSIGN_OR_RETURN(const testing::ExitStatus exit, process_->WaitExit(seconds(120)));
  if (!exit.exited || exit.code != 0) {
    return Errorf(StatusCode::kDataLoss, "the load program ended with {} {}: {}",
                  exit.exited ? "code" : "signal", exit.code, process_->err());
  }
  return process_->WaitForLine("{", milliseconds(1));
}

uint64_t Counter(const std::string& json, const std::string& name) {
  const size_t at = json.find("\"" + name + "\":");
  return at == std::string::npos ? 0
                                 : std::strtoull(json.c_str() + at + name.size() + 3, nullptr, 10);
}

const client::TierStat* Tier(const client::NodeStats& stats, client::TierKind kind) {
  for (const client::TierStat& tier : stats.tiers) {
    if (tier.tier == kind) return &tier;
  }
  return nullptr;
}

std::string Describe(const client::NodeStats& stats) {
  std::string text = fmt::format(
      "sessions {} leases {} reservations {} ({} bytes) blocks {} incomplete {} unflushed {}",
      stats.sessions, stats.leases, stats.reservations, stats.reserved_bytes, stats.blocks,
      stats.incomplete_blocks, stats.unflushed_bytes);
  for (const client::TierStat& tier : stats.tiers) {
    text += fmt::format("; {}: {} of {} bytes in {} blocks", Name(tier.tier), tier.used_bytes,
                        tier.capacity_bytes, tier.blocks);
  }
  return text;
}

std::string StillHeld(client::CacheClient& client, uint64_t sessions, milliseconds timeout) {
  return PollStats(client, timeout, [&](const client::NodeStats& stats) {
    return stats.leases == 0 && stats.reservations == 0 && stats.reserved_bytes == 0 &&
           stats.sessions == sessions;
  });
}

std::string UsageMismatch(client::CacheClient& client, const std::vector<uint64_t>& part_bytes,
                          milliseconds timeout) {
  // Both tiers take whole pages.
  uint64_t in_pages = 0;
  for (const uint64_t part : part_bytes) in_pages += (part + kPage - 1) / kPage * kPage;
  const std::string last = PollStats(client, timeout, [&](const client::NodeStats& stats) {
    const client::TierStat* host = Tier(stats, client::TierKind::kHost);
    const client::TierStat* disk = Tier(stats, client::TierKind::kDisk);
    return host != nullptr && host->used_bytes == host->blocks * in_pages &&
           (disk == nullptr || disk->used_bytes == disk->blocks * in_pages);
  });
  return last.empty() ? last : fmt::format("{}; a block takes {} bytes", last, in_pages);
}

std::string LeftAfterDrop(Node& node, client::CacheClient& client, const std::string& tenant,
                          milliseconds timeout) {
  const auto admin = client::ConnectAdmin({.address = node.address()});
  CAIRN_CHECK(admin.ok());
  const Result<client::DropResult> dropped =
      (*admin)->DropTenant(tenant, {.deadline = seconds(10)});
  if (!dropped.ok()) return ToString(dropped.status());
  return PollStats(client, timeout, [](const client::NodeStats& stats) {
    for (const client::TierStat& tier : stats.tiers) {
      if (tier.used_bytes != 0 || tier.blocks != 0) return false;
    }
    return stats.blocks == 0 && stats.incomplete_blocks == 0;
  });
}

}  // namespace cairn::fault
