// disk and prefetch: a node with a disk tier, killed and started again so that nothing is in RAM.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tools/cairn/bench/cpu_meter.h"
#include "tools/cairn/bench/operations.h"
#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/throughput.h"
#include "tools/cairn/bench/workloads.h"

namespace cairn::cli::bench {
namespace {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The part that both share: blocks that only the disk holds.
class OnDisk : public Workload {
 public:
  explicit OnDisk(const BenchOptions& options) : options_(options) {}

  Status Prepare() override {
    if (!options_.cache.empty()) {
      return InvalidArgument("--cache: this workload kills its node, so it starts its own");
    }
    CAIRN_ASSIGN_OR_RETURN(set_, BlockSet::Make({.block_bytes = options_.block_bytes,
                                                 .layers = options_.layers,
                                                 .blocks = options_.blocks()}));
    CAIRN_ASSIGN_OR_RETURN(destination_, Buffer::Allocate(options_.data_bytes));
    const uint64_t stored =
        options_.data_bytes + uint64_t{set_->blocks()} * 8192 + (uint64_t{64} << 20);
    CAIRN_ASSIGN_OR_RETURN(
        node_, TestNode::Start(options_, {.host_bytes = 2 * stored, .disk_bytes = 4 * stored}));
    return Reconnect();
  }

  std::vector<pid_t> Children() const override { return node_->Pids(); }

  std::vector<std::pair<std::string, std::string>> Facts() const override {
    const auto stats = client_->Stat(PatientCall());
    return {{"path", std::string(client::Name(client_->GetStats().path))},
            {"disk_io", stats.ok() ? stats->disk_io_mode : "unknown"}};
  }

 protected:
  // Stores everything under new keys and waits for the disk. Seconds that it took.
  Result<double> Write() {
    ++generation_;
    const auto start = Clock::now();
    CAIRN_RETURN_IF_ERROR(Store(*client_, *set_, generation_, options_.batch));
    CAIRN_RETURN_IF_ERROR(client_->Flush(PatientCall()));
    return SecondsSince(start);
  }

  // kill -9, and a node with an empty host tier.
  Status Restart() {
    client_.reset();
    CAIRN_RETURN_IF_ERROR(node_->Restart());
    return Reconnect();
  }

  Result<client::Lease> Match(uint32_t chain) {
    const auto keys = set_->Keys(generation_, chain * options_.batch, (chain + 1) * options_.batch);
    CAIRN_ASSIGN_OR_RETURN(client::MatchOutcome match,
                           client_->Match(set_->fingerprint(), keys, PatientMatch()));
    if (match.matched_blocks != keys.size()) {
      return Errorf(StatusCode::kDataLoss, "of {} blocks that were flushed {} are there: {}",
                    keys.size(), match.matched_blocks, client::Name(match.miss_reason));
    }
    return std::move(match.lease);
  }

  // Match and fetch of one chain, into its place.
  Status Read(uint32_t chain) {
    const uint64_t bytes = options_.batch * set_->block_bytes();
    CAIRN_ASSIGN_OR_RETURN(const client::Lease lease, Match(chain));
    MemorySink sink(destination_.bytes().subspan(chain * bytes, bytes), set_->block_bytes());
    CAIRN_RETURN_IF_ERROR(client_->Fetch(lease, {}, sink, PatientFetch(options_.verify)));
    return sink.Check(bytes);
  }

  uint32_t Chains() const { return set_->blocks() / options_.batch; }

  const BenchOptions options_;
  std::shared_ptr<const BlockSet> set_;
  Buffer destination_;
  std::unique_ptr<TestNode> node_;
  std::unique_ptr<client::CacheClient> client_;
  uint64_t generation_ = 0;

 private:
  Status Reconnect() {
    CAIRN_ASSIGN_OR_RETURN(client_, node_->Connect(options_.path, set_->spec()));
    return OkStatus();
  }
};

class Disk final : public OnDisk {
 public:
  using OnDisk::OnDisk;

  Result<std::vector<Metric>> Trial(double) override {
    const double gigabytes = static_cast<double>(Chains()) * options_.batch *
                             static_cast<double>(set_->block_bytes()) / 1e9;
    const CpuMeter write_cpu(Children());
    CAIRN_ASSIGN_OR_RETURN(const double write_seconds, Write());
    const double write_cpu_seconds = write_cpu.Read().own_seconds;

    CAIRN_RETURN_IF_ERROR(Restart());
    std::memset(destination_.bytes().data(), 0, destination_.bytes().size());
    const CpuMeter read_cpu(Children());
    const Operations pass =
        RunOperations(options_.depth, Chains(), 600, [&](uint32_t, uint32_t i) { return Read(i); });
    const double read_cpu_seconds = read_cpu.Read().own_seconds;
    CAIRN_RETURN_IF_ERROR(pass.status);
    CAIRN_RETURN_IF_ERROR(ComparePayload(*set_, 0, set_->blocks(), destination_.bytes()));
    return std::vector<Metric>{{"write", "GB/s", gigabytes / write_seconds},
                               {"read", "GB/s", gigabytes / pass.seconds},
                               {"write cpu", "core-s/GB", write_cpu_seconds / gigabytes},
                               {"read cpu", "core-s/GB", read_cpu_seconds / gigabytes}};
  }
};

class Prefetch final : public OnDisk {
 public:
  using OnDisk::OnDisk;

  Status Prepare() override {
    CAIRN_RETURN_IF_ERROR(OnDisk::Prepare());
    if (Chains() < 2) {
      return InvalidArgument("--data: expected at least two batches, got {}", Chains());
    }
    return Write().status();
  }

  // One prompt is fetched from disk, another after a hint.
  Result<std::vector<Metric>> Trial(double) override {
    CAIRN_RETURN_IF_ERROR(Restart());
    std::memset(destination_.bytes().data(), 0, destination_.bytes().size());
    const double gigabytes =
        static_cast<double>(options_.batch) * static_cast<double>(set_->block_bytes()) / 1e9;
    auto start = Clock::now();
    CAIRN_RETURN_IF_ERROR(Read(0));
    const double cold = SecondsSince(start);

    const auto keys = set_->Keys(generation_, options_.batch, 2 * options_.batch);
    start = Clock::now();
    CAIRN_ASSIGN_OR_RETURN(
        const client::PrefetchOutcome outcome,
        client_->Prefetch(set_->fingerprint(), keys, std::chrono::milliseconds(0), PatientCall()));
    if (outcome.queued_blocks != options_.batch) {
      return Errorf(StatusCode::kInternal, "of {} blocks on disk {} were queued", options_.batch,
                    outcome.queued_blocks);
    }
    CAIRN_RETURN_IF_ERROR(WaitForHost(keys));
    const double hinted = SecondsSince(start);
    start = Clock::now();
    CAIRN_RETURN_IF_ERROR(Read(1));
    const double warm = SecondsSince(start);
    CAIRN_RETURN_IF_ERROR(ComparePayload(*set_, 0, 2 * options_.batch, destination_.bytes()));
    return std::vector<Metric>{{"prefetch", "GB/s", gigabytes / hinted},
                               {"get from disk", "GB/s", gigabytes / cold},
                               {"get after a hint", "GB/s", gigabytes / warm}};
  }

 private:
  Status WaitForHost(const std::vector<BlockKey>& keys) {
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(const auto tiers,
                             client_->Exists(set_->fingerprint(), keys, PatientCall()));
      if (std::all_of(tiers.begin(), tiers.end(),
                      [](const auto& tier) { return tier == client::TierKind::kHost; })) {
        return OkStatus();
      }
      if (Clock::now() > until) {
        return Errorf(StatusCode::kDeadlineExceeded, "hinted blocks did not come to RAM");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
};

}  // namespace

std::unique_ptr<Workload> NewDisk(const BenchOptions& options) {
  return std::make_unique<Disk>(options);
}
std::unique_ptr<Workload> NewPrefetch(const BenchOptions& options) {
  return std::make_unique<Prefetch>(options);
}

}  // namespace cairn::cli::bench
