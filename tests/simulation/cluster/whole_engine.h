#pragma once
// The engine of a node as it is, over a small host tier and a fake disk, and clients that store,
// match and fetch.

#include <list>
#include <string>

#include "common/concurrency/executor.h"
#include "common/concurrency/timers.h"
#include "services/cache/store/tier/host_tier.h"
#include "tests/simulation/cluster/simulated_engine.h"

namespace cairn::testing {

// A namespace whose blocks the whole engine stores: two layers and two heads of one number.
SimulatedNamespace MakeNamespace(const std::string& model, uint32_t block_tokens);

class WholeEngine final : public SimulatedEngine {
 public:
  struct Options {
    uint64_t host_bytes = 1 << 20;
    uint64_t disk_bytes = 2 << 20;
    uint32_t parts = 1;     // That the blocks of a writer have: 1 or 2.
    size_t events = 65536;  // That a watcher may lag behind.
    Duration lookup_patience = std::chrono::milliseconds(40);  // The patience of a client.
    Duration fetch_patience = std::chrono::seconds(10);
    // No fetch is silent for longer, whatever happens: the node gives up each block before that.
    Duration longest_silence = std::chrono::seconds(4);
  };
  // All of the process. They outlive it, but for tasks that were handed to `later`.
  struct Surroundings {
    std::string node_id;
    uint64_t epoch = 0;
    uint64_t seed = 1;
    Clock* clock = nullptr;
    Timers* timers = nullptr;
    Executor* executor = nullptr;
    cache::BlockSource* source = nullptr;
    // After so much time, unless the process dies before.
    std::function<void(Duration, std::function<void()>)> later;
    TellWrong wrong;
  };
  WholeEngine(Options options, Surroundings surroundings, const SimulatedDisk& disk);
  // REQUIRES: Close() was called, and the links and timers of the process have ended.
  ~WholeEngine() override;

  cache::CacheEngine& cache() override { return *engine_; }
  void Know(const SimulatedNamespace& ns) override;
  void Store(const SimulatedNamespace& ns, std::span<const BlockKey> keys) override;
  void Get(const SimulatedNamespace& ns, std::vector<BlockKey> keys, Done done) override;
  void Close() override;
  void FinishDisk() override;
  SimulatedDisk Save(bool power_loss) const override;
  void Tick() override;
  void Break(DiskFault fault, int operations) override;
  bool Has(const Digest& fingerprint, const BlockKey& key) override;
  uint32_t Prefix(const Digest& fingerprint, std::span<const BlockKey> keys) override;
  bool Knows(const Digest& fingerprint) const override;
  size_t sessions() const override { return engine_->GetStats().sessions; }
  size_t leases() const override { return engine_->GetStats().leases; }
  uint64_t accepted() const override { return accepted_; }
  uint64_t outdated() const override { return outdated_; }

 private:
  struct Request;
  using RequestPtr = std::shared_ptr<Request>;

  Duration DiskTime();
  Status StoreOne(cache::SessionId session, const SimulatedNamespace& ns,
                  const cache::ReservePartRequest& part, uint64_t stamp);
  void Matched(const RequestPtr& request, const Result<cache::MatchResult>& match);
  void BeginFetch(const RequestPtr& request, const cache::MatchResult& match);
  // Takes what has come, and looks again later.
  void Pump(const RequestPtr& request);
  void Look(Request& request, const cache::FetchedSlice& slice);
  void Finish(const RequestPtr& request);

  const Options options_;
  const Surroundings s_;
  uint64_t random_;
  bool closed_ = false;
  std::unique_ptr<cache::testing::FakeTier> disk_;
  std::unique_ptr<cache::HostTier> host_;
  std::unique_ptr<cache::CacheEngine> engine_;
  std::list<RequestPtr> requests_;
  uint64_t ticks_ = 0, flushed_bytes_ = 0;
  uint64_t accepted_ = 0, outdated_ = 0;
};

}  // namespace cairn::testing
