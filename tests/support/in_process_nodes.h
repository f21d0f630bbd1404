#pragma once
// Several nodes in one thread, which know nothing of each other, and clients of all of them.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "clients/cpp/src/core/home_client.h"
#include "common/concurrency/executor.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/testing/fake_tier.h"
#include "tests/support/in_process_node.h"

namespace cairn::testing {

// The nodes have the addresses "a:1", "b:1" and so on. Must outlive its clients. Not thread-safe.
class InProcessNodes {
 public:
  InProcessNodes(FakeClock* clock, size_t count) : clock_(clock) {
    for (size_t i = 0; i < count; ++i) {
      members_.push_back(std::make_unique<Member>(clock));
      Start(i);
      member(i).node.SetPlace({.node_id = std::string("node-") + Letter(i)});
    }
  }
  ~InProcessNodes() {
    for (const auto& member : members_) member->node.RunAll();
  }

  static std::string Address(size_t i) { return std::string(1, Letter(i)) + ":1"; }
  size_t size() const { return members_.size(); }
  // The number of the node with this address.
  static size_t Number(const std::string& address) { return static_cast<size_t>(address[0] - 'a'); }
  InProcessNode& node(size_t i) { return member(i).node; }
  cache::CacheEngine& engine(size_t i) { return *member(i).engine; }

  // kill -9.
  void Kill(size_t i) {
    member(i).node.Die();
    member(i).executor.RunAll();
    member(i).engine.reset();
  }
  // After Kill, without any block.
  void Start(size_t i) {
    Member& m = member(i);
    m.host = *cache::HostTier::Create(
        {.capacity_bytes = 64 << 20, .prefault = false, .check_memory = false});
    m.disk = std::make_unique<cache::testing::FakeTier>(cache::testing::FakeTier::Options{
        .capacity_bytes = 64 << 20, .max_extent_bytes = 16 << 20});
    cache::Tiers tiers(m.host.get());
    tiers.Add(m.disk.get());
    m.engine = *cache::CacheEngine::Create({}, {.tiers = tiers,
                                                .clock = clock_,
                                                .executor = &m.executor,
                                                .node_id = std::string("node-") + Letter(i),
                                                .node_epoch = ++starts_});
    m.node.Start(m.engine.get());
  }

  // Knows all nodes, makes no steps by itself.
  std::unique_ptr<client::HomeClient> NewClient(client::HomeChooser::Options choice = {}) {
    client::HomeClient::Found found;
    for (size_t i = 0; i < size(); ++i) found.nodes.push_back({.address = Address(i)});
    return NewClient({.choice = std::move(choice)}, [found] { return found; });
  }
  std::unique_ptr<client::HomeClient> NewClient(client::HomeClient::Options options,
                                                client::HomeClient::LookUp look_up) {
    return std::make_unique<client::HomeClient>(
        std::move(options), clock_, std::move(look_up),
        [this](const client::NodeAddress& to, const std::vector<client::KnownNamespace>& namespaces)
            -> Result<std::unique_ptr<client::NodeClient>> {
          ++clients_made;
          return node(Number(to.address)).NewClient({.namespaces = namespaces});
        });
  }

  int clients_made = 0;  // One for each node that a client has used.

 private:
  struct Member {
    explicit Member(FakeClock* clock)
        : node(clock, [this] { return executor.RunOne() || disk->RunOneHeld(); }) {}
    ManualExecutor executor;
    std::unique_ptr<cache::testing::FakeTier> disk;
    std::unique_ptr<cache::HostTier> host;
    std::unique_ptr<cache::CacheEngine> engine;
    InProcessNode node;
  };
  static char Letter(size_t i) { return static_cast<char>('a' + static_cast<int>(i)); }
  Member& member(size_t i) { return *members_.at(i); }

  FakeClock* const clock_;
  uint64_t starts_ = 0;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace cairn::testing
