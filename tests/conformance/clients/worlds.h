#pragma once
// Where the clients of the suite come from: one world for each implementation.

#include <memory>
#include <string>
#include <vector>

#include "cairn/client/connect.h"
#include "cairn/client/testing/in_memory_cache_client.h"
#include "gtest/gtest.h"
#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/testing/fake_tier.h"
#include "tests/support/in_process_node.h"
#include "tests/support/in_process_nodes.h"
#include "tests/support/process.h"

namespace cairn::client {

// Where clients come from. All of one world see the same blocks.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<CacheClient> Client() = 0;
  // The path that bytes take.
  virtual Path path() const { return Path::kGrpc; }
};

class InMemory final : public World {
 public:
  std::shared_ptr<CacheClient> Client() override { return client_; }

 private:
  const std::shared_ptr<CacheClient> client_ = std::make_shared<testing::InMemoryCacheClient>();
};

// The engine's work waits until somebody waits for it.
class InProcess final : public World {
 public:
  InProcess() {
    cache::Tiers tiers(host_.get());
    tiers.Add(&disk_);
    engine_ = *cache::CacheEngine::Create({}, {.tiers = tiers,
                                               .clock = &clock_,
                                               .executor = &executor_,
                                               .node_id = "node",
                                               .node_epoch = 1});
    node_.Start(engine_.get());
  }
  ~InProcess() override { node_.RunAll(); }
  std::shared_ptr<CacheClient> Client() override { return node_.NewClient(); }

 private:
  FakeClock clock_;
  ManualExecutor executor_;
  cache::testing::FakeTier disk_{{.capacity_bytes = 64 << 20, .max_extent_bytes = 16 << 20}};
  const std::unique_ptr<cache::HostTier> host_ = *cache::HostTier::Create(
      {.capacity_bytes = 64 << 20, .prefault = false, .check_memory = false});
  std::unique_ptr<cache::CacheEngine> engine_;
  cairn::testing::InProcessNode node_{&clock_, [this] { return executor_.RunOne(); }};
};

// Two nodes, of which all clients prefer the same one.
class TwoInProcess final : public World {
 public:
  std::shared_ptr<CacheClient> Client() override { return nodes_.NewClient({.key = "suite"}); }

 private:
  FakeClock clock_;
  cairn::testing::InProcessNodes nodes_{&clock_, 2};
};

template <PathChoice kChoice, int kNodes = 1>
class RealNode final : public World {
 public:
  RealNode() {
    for (int i = 0; i < kNodes; ++i) {
      auto node = cairn::testing::CacheNode::Start(
          {"--local.socket", fmt::format("{}/node{}.sock", directory_.path(), i)});
      CAIRN_CHECK(node.ok());
      addresses_ += (i == 0 ? "" : ",") + (*node)->address();
      nodes_.push_back(*std::move(node));
    }
  }
  std::shared_ptr<CacheClient> Client() override {
    auto client = Connect({.address = addresses_, .client_name = "conformance", .path = kChoice});
    CAIRN_CHECK(client.ok());
    return *std::move(client);
  }
  Path path() const override { return kChoice == PathChoice::kGrpc ? Path::kGrpc : Path::kLocal; }

 private:
  const cairn::testing::TemporaryDirectory directory_;
  std::vector<std::unique_ptr<cairn::testing::CacheNode>> nodes_;
  std::string addresses_;
};

using Worlds =
    ::testing::Types<InMemory, InProcess, RealNode<PathChoice::kGrpc>, RealNode<PathChoice::kLocal>,
                     RealNode<PathChoice::kAuto>, TwoInProcess, RealNode<PathChoice::kGrpc, 2>,
                     RealNode<PathChoice::kAuto, 2>>;
struct WorldNames {
  template <typename T>
  static std::string GetName(int i) {
    const char* const names[] = {"InMemory", "InProcess",    "Grpc",    "Local",
                                 "Auto",     "TwoInProcess", "TwoGrpc", "TwoAuto"};
    return names[i];
  }
};

}  // namespace cairn::client
