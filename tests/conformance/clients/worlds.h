#pragma once
// Where the clients of the suite come from: one world for each implementation.

#include <memory>
#include <string>

#include "cairn/client/connect.h"
#include "cairn/client/testing/in_memory_cache_client.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace cairn::client {

// Where clients come from. All of one world see the same blocks.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<CacheClient> Client() = 0;
  // What bytes take.
  virtual Path path() const { return Path::kGrpc; }
};

class InMemory final : public World {
 public:
  std::shared_ptr<CacheClient> Client() override { return client_; }

 private:
  const std::shared_ptr<CacheClient> client_ = std::make_shared<testing::InMemoryCacheClient>();
};

template <PathChoice kChoice>
class RealNode final : public World {
 public:
  RealNode() {
    auto node =
        cairn::testing::CacheNode::Start({"--local.socket", directory_.path() + "/node.sock"});
    CAIRN_CHECK(node.ok());
    node_ = *std::move(node);
  }
  std::shared_ptr<CacheClient> Client() override {
    auto client =
        Connect({.address = node_->address(), .client_name = "conformance", .path = kChoice});
    CAIRN_CHECK(client.ok());
    return *std::move(client);
  }
  Path path() const override { return kChoice == PathChoice::kGrpc ? Path::kGrpc : Path::kLocal; }

 private:
  const cairn::testing::TemporaryDirectory directory_;
  std::unique_ptr<cairn::testing::CacheNode> node_;
};

using Worlds = ::testing::Types<InMemory, RealNode<PathChoice::kGrpc>, RealNode<PathChoice::kLocal>,
                                RealNode<PathChoice::kAuto>>;
struct WorldNames {
  template <typename T>
  static std::string GetName(int i) {
    const char* const names[] = {"InMemory", "Grpc", "Local", "Auto"};
    return names[i];
  }
};

}  // namespace cairn::client
