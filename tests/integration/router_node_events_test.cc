// A real router that follows the events which a real cache node publishes over ZeroMQ: the blocks
// of a prompt are where the node says, once an engine's own events have told what they stand for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <functional>
#include <sstream>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/node_client.h"
#include "tests/integration/router_support.h"
#include "tests/support/engine_batches.h"
#include "tests/support/fake_publisher.h"
#include "tests/support/process.h"

namespace cairn::router {
namespace {

using cairn::testing::CacheNode;
using cairn::testing::NodeClient;
using cairn::testing::Process;
using cairn::testing::RouterProcess;
using cairn::testing::TemporaryDirectory;
using ::testing::HasSubstr;

constexpr uint32_t kBlock = 16;
constexpr int kBlocks = 40;  // Blocks of the prompt. The engines have a token for each letter.

std::string Prompt() {
  std::string text = "a conversation: ";
  while (text.size() < size_t{kBlock} * kBlocks) {
    text += static_cast<char>('a' + text.size() * 7 % 26);
  }
  return text;
}

// The engine's name for the block that the node has under NodeClient::Key(block).
uint64_t HashOf(int block) {
  uint64_t hash = 0;
  for (const char c : NodeClient::Key(block).substr(24)) hash = hash << 8 | static_cast<uint8_t>(c);
  return hash;
}

std::string Stored() {
  const std::string text = Prompt();
  WrittenStored event{.tokens = {text.begin(), text.end()}, .block_size = kBlock};
  for (int i = 0; i < kBlocks; ++i) event.hashes.push_back(HashOf(i));
  return BatchWriter(EventForm::kMaps, HashForm::kUnsigned).Stored(event).Take();
}

std::string Removed() {
  WrittenRemoved event;
  for (int i = 0; i < kBlocks; ++i) event.hashes.push_back(HashOf(i));
  return BatchWriter(EventForm::kMaps, HashForm::kUnsigned).Removed(event).Take();
}

// Two engines. The events of the first one are its own; those of the second one are of the node
// from which it loads.
class RouterNodeEventsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engines =
        Process::Start({.argv = {"/usr/bin/python3", "tests/router/fake_engine.py", "0", "0"}});
    ASSERT_OK(engines);
    engines_ = *std::move(engines);
    const auto urls = engines_->WaitForLine("http://", std::chrono::seconds(120));
    ASSERT_OK(urls);
    std::istringstream words(*urls);
    words >> urls_[0] >> urls_[1];
    StartNode();
    const std::string events =
        fmt::format("{}={},{},{}=ipc://{}/events,ipc://{}/replay", urls_[0], engine_.endpoint(),
                    engine_.replay_endpoint(), urls_[1], directory_.path(), directory_.path());
    auto router = RouterProcess::StartBeforeEngines(
        {urls_[0], urls_[1]}, {"--engines.events", events, "--engines.block_tokens",
                               std::to_string(kBlock), "--policy", "affinity"});
    ASSERT_OK(router);
    router_ = *std::move(router);
    ASSERT_TRUE(router_->WaitReady(2));
    WaitForMetric("cairn_router_engine_event_streams{condition=\"connected\"} 2\n");
    // The engine explains the blocks, and loses them.
    Wait([&] { return engine_.IsFollowed(); });
    engine_.Publish(Stored());
    WaitForEntries(kBlocks);
    engine_.Publish(Removed());
    WaitForEntries(0);
  }
  void StartNode() {
    node_.reset();
    auto node = CacheNode::Start({"--events.zmq", "ipc://" + directory_.path() + "/events",
                                  "--events.zmq_replay", "ipc://" + directory_.path() + "/replay",
                                  "--events.topic", ""});
    ASSERT_OK(node);
    node_ = *std::move(node);
    client_ = std::make_unique<NodeClient>(node_->address());
    OpenNamespace();
  }
  void OpenNamespace() {
    NamespaceSpec spec = NodeClient::Spec("default");
    spec.key_scheme = "vllm-sha256-00";
    fingerprint_ = client_->Open(spec);
  }
  void Store(int first, int last) {
    for (int i = first; i <= last; ++i) ASSERT_TRUE(client_->Store(fingerprint_, i, 1000).ok());
  }
  void Wait(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      engine_.Serve();
      poll(nullptr, 0, 2);  // Sockets of ZeroMQ have to be asked.
    }
  }
  void WaitForEntries(uint64_t entries) {
    Wait([&] {
      const auto info = router_->GetInfo();
      return info.ok() && info->index_entries() == entries;
    });
  }
  void WaitForMetric(const std::string& line) {
    Wait([&] {
      const auto metrics = metrics::HttpGet(router_->admin(), "/metrics", std::chrono::seconds(60));
      return metrics.ok() && metrics->find(line) != metrics->npos;
    });
  }
  // Whether the prompt goes to the engine of the node. By chance it would, in one of 1,000 runs.
  bool GoesToTheNode() {
    for (int i = 0; i < 10; ++i) {
      const uint64_t before = Picks();
      const std::string answer = router_->Http(
          "POST /v1/completions",
          fmt::format(R"({{"model": "fake", "prompt": "{} And then?", "max_tokens": 2}})",
                      Prompt()));
      EXPECT_THAT(answer, HasSubstr("200 OK"));
      if (Picks() == before) return false;
    }
    return true;
  }
  uint64_t Picks() {
    const auto info = router_->GetInfo();
    EXPECT_OK(info);
    return info.ok() ? info->workers(1).picks() : 0;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Process> engines_;
  std::array<std::string, 2> urls_;
  FakePublisher engine_{FakePublisher::Options{}};
  std::unique_ptr<CacheNode> node_;
  std::unique_ptr<NodeClient> client_;
  std::string fingerprint_;
  std::unique_ptr<RouterProcess> router_;
};

TEST_F(RouterNodeEventsTest, APromptGoesWhereTheNodeHoldsIt) {
  Store(0, kBlocks - 1);
  WaitForEntries(kBlocks);
  EXPECT_TRUE(GoesToTheNode());
  WaitForMetric("cairn_router_engine_event_junk_total 0\n");
}

TEST_F(RouterNodeEventsTest, ANodeThatComesBackEmptyHoldsNothing) {
  Store(0, kBlocks - 1);
  WaitForEntries(kBlocks);
  StartNode();
  WaitForEntries(0);
  Store(0, 9);
  WaitForEntries(10);
}

TEST_F(RouterNodeEventsTest, ADroppedNamespaceIsForgotten) {
  Store(0, kBlocks - 1);
  WaitForEntries(kBlocks);
  grpc::ClientContext context;
  v1::DropNamespaceRequest request;
  v1::DropResponse response;
  request.set_fingerprint(fingerprint_);
  ASSERT_TRUE(client_->admin().DropNamespace(&context, request, &response).ok());
  WaitForMetric("cairn_router_engine_events_total{kind=\"cleared\"} 2\n");
  // The index forgets as it takes in others.
  OpenNamespace();
  Store(0, 9);
  WaitForEntries(10);
}

}  // namespace
}  // namespace cairn::router
