// A real router before engines that publish KV events over real ZeroMQ: requests go where these say
// that their prompt lies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <functional>
#include <sstream>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/router_support.h"
#include "tests/support/engine_batches.h"
#include "tests/support/fake_publisher.h"
#include "tests/support/process.h"

namespace cairn::router {
namespace {

using cairn::testing::Process;
using cairn::testing::RouterProcess;
using ::testing::HasSubstr;

constexpr uint32_t kBlock = 16;
constexpr uint32_t kBlocks = 100;  // Blocks of a prompt. The engines have a token for each letter.

// The prompt of this number.
std::string Prompt(int number) {
  std::string text = fmt::format("conversation {}: ", number);
  while (text.size() < size_t{kBlock} * kBlocks) {
    text += static_cast<char>('a' + (text.size() * 7 + static_cast<size_t>(number)) % 26);
  }
  return text;
}

uint64_t HashOf(int number, uint32_t block) { return uint64_t(number) * 1000 + block + 1; }

// The event of an engine that has computed the prompt.
std::string Stored(int number) {
  const std::string text = Prompt(number);
  WrittenStored event{.tokens = {text.begin(), text.end()}, .block_size = kBlock};
  for (uint32_t i = 0; i < kBlocks; ++i) event.hashes.push_back(HashOf(number, i));
  return BatchWriter(EventForm::kMaps, HashForm::kBytes).Stored(event).Take();
}

// When it has left its cache.
std::string Removed(int number) {
  WrittenRemoved event;
  for (uint32_t i = 0; i < kBlocks; ++i) event.hashes.push_back(HashOf(number, i));
  return BatchWriter(EventForm::kMaps, HashForm::kBytes).Removed(event).Take();
}

// Two fake engines, the publisher of each, and a router.
class RouterEngineEventsTest : public ::testing::Test {
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
    for (auto& publisher : publishers_) {
      publisher = std::make_unique<FakePublisher>(FakePublisher::Options{});
    }
  }
  void StartRouter() {
    std::string events;
    for (size_t i = 0; i < 2; ++i) {
      events += fmt::format("{}{}={},{}", i == 0 ? "" : ",", urls_[i], publishers_[i]->endpoint(),
                            publishers_[i]->replay_endpoint());
    }
    auto router = RouterProcess::StartBeforeEngines(
        {urls_[0], urls_[1]}, {"--engines.events", events, "--engines.block_tokens",
                               std::to_string(kBlock), "--policy", "affinity"});
    ASSERT_OK(router);
    router_ = *std::move(router);
    ASSERT_TRUE(router_->WaitReady(2));
    Wait([&] { return publishers_[0]->IsFollowed() && publishers_[1]->IsFollowed(); });
  }
  void Wait(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      for (const auto& publisher : publishers_) publisher->Serve();
      poll(nullptr, 0, 2);  // Sockets of ZeroMQ have to be asked.
    }
  }
  void WaitForBlocks(uint64_t entries) {
    Wait([&] {
      const auto info = router_->GetInfo();
      return info.ok() && info->index_entries() == entries;
    });
  }
  // Until this many events of a kind have come in, from both engines.
  void WaitForEvents(const char* kind, int events) {
    const std::string line =
        fmt::format("cairn_router_engine_events_total{{kind=\"{}\"}} {}\n", kind, events);
    Wait([&] {
      const auto metrics = metrics::HttpGet(router_->admin(), "/metrics", std::chrono::seconds(60));
      return metrics.ok() && metrics->find(line) != metrics->npos;
    });
  }
  // The engine that gets a request with this prompt and more text.
  int Ask(int number) {
    const std::string answer = router_->Http(
        "POST /v1/completions",
        fmt::format(R"({{"model": "fake", "prompt": "{} And then?", "max_tokens": 2}})",
                    Prompt(number)));
    EXPECT_THAT(answer, HasSubstr("200 OK"));
    const auto info = router_->GetInfo();
    EXPECT_OK(info);
    if (!info.ok()) return -1;
    int engine = -1;
    for (int i = 0; i < 2; ++i) {
      const uint64_t picks = info->workers(i).picks();
      if (picks != picks_[static_cast<size_t>(i)]) engine = i;
      picks_[static_cast<size_t>(i)] = picks;
    }
    return engine;
  }

  std::unique_ptr<Process> engines_;
  std::array<std::string, 2> urls_;
  std::array<std::unique_ptr<FakePublisher>, 2> publishers_;
  std::unique_ptr<RouterProcess> router_;
  std::array<uint64_t, 2> picks_ = {};
};

TEST_F(RouterEngineEventsTest, APromptGoesToTheEngineThatSaysThatItHoldsIt) {
  StartRouter();
  constexpr int kPrompts = 12;
  for (int number = 0; number < kPrompts; ++number) {
    publishers_[static_cast<size_t>(number) % 2]->Publish(Stored(number));
  }
  WaitForBlocks(uint64_t{kPrompts} * kBlocks);
  for (int number = 0; number < kPrompts; ++number) EXPECT_EQ(Ask(number), number % 2) << number;
  // They move to the other one.
  for (int number = 0; number < kPrompts; ++number) {
    publishers_[static_cast<size_t>(number) % 2]->Publish(Removed(number));
    publishers_[static_cast<size_t>(number + 1) % 2]->Publish(Stored(number));
  }
  // Asking where a prompt goes does not say it: one that no engine holds goes anywhere.
  WaitForEvents("stored", 2 * kPrompts);
  WaitForEvents("removed", kPrompts);
  for (int number = 0; number < kPrompts; ++number) {
    EXPECT_EQ(Ask(number), (number + 1) % 2) << number;
  }
}

TEST_F(RouterEngineEventsTest, ALateRouterAsksForWhatItMissed) {
  for (int number = 0; number < 6; ++number) {
    publishers_[static_cast<size_t>(number) % 2]->Publish(Stored(number));
  }
  StartRouter();
  WaitForBlocks(6 * kBlocks);
  for (int number = 0; number < 6; ++number) EXPECT_EQ(Ask(number), number % 2) << number;
}

TEST_F(RouterEngineEventsTest, JunkBreaksNothingAndIsInTheMetrics) {
  StartRouter();
  publishers_[0]->Publish("no batch");
  publishers_[0]->PublishFrames({"only one"});
  publishers_[0]->Publish(Stored(1));
  publishers_[1]->Publish(Stored(2));
  WaitForBlocks(2 * kBlocks);
  EXPECT_EQ(Ask(1), 0);
  EXPECT_EQ(Ask(2), 1);
  const auto metrics = metrics::HttpGet(router_->admin(), "/metrics", std::chrono::seconds(60));
  ASSERT_OK(metrics);
  for (const char* line : {"cairn_router_engine_event_junk_total 2\n",
                           "cairn_router_engine_event_streams{condition=\"connected\"} 2\n",
                           "cairn_router_engine_events_total{kind=\"stored\"} 2\n",
                           "cairn_router_engine_known_blocks 200\n"}) {
    EXPECT_THAT(*metrics, HasSubstr(line));
  }
}

TEST_F(RouterEngineEventsTest, EnginesThatAreAwayAreWaitedFor) {
  StartRouter();
  publishers_[0]->Publish(Stored(1));
  WaitForBlocks(kBlocks);
  const FakePublisher::Options same = {.endpoint = publishers_[0]->endpoint(),
                                       .replay_endpoint = publishers_[0]->replay_endpoint()};
  publishers_[0].reset();
  publishers_[0] = std::make_unique<FakePublisher>(same);
  publishers_[0]->Publish(Stored(2));
  Wait([&] { return Ask(2) == 0 && Ask(2) == 0 && Ask(2) == 0; });
  // It has restarted: of the first prompt nobody says anything any more.
  WaitForBlocks(kBlocks);
}

}  // namespace
}  // namespace cairn::router
