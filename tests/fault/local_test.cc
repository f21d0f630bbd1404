// The effects on a node and on others when a same-node client is killed, stopped, or reads no more;
// and on a client when its node is.

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <thread>
#include <utility>

#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

using client::CacheClient;
using client::ClientStats;
using client::NodeStats;
using client::Path;

const client::CallOptions kCall{.deadline = seconds(60)};

class FaultLocalTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> args = {}) {
    args.insert(args.end(), {"--local.socket", socket_, "--host.capacity", "64MiB"});
    auto node = Node::Start(args);
    ASSERT_TRUE(node.ok()) << ToString(node.status());
    node_ = *std::move(node);
    client_ = ConnectAndOpen(node_->address(), model_);
    ASSERT_TRUE(WaitUntil([&] { return client_->GetStats().path == Path::kLocal; }, seconds(120)))
        << client_->GetStats().path_reason;
  }
  // A client in another process that holds leases, lent bytes and rooms now.
  std::unique_ptr<Process> Hold(const std::string& mode) {
    auto process =
        Process::Start({.argv = {testing::Binary("cairn_fault_holder"), node_->address(), mode}});
    EXPECT_TRUE(process.ok());
    const auto line = (*process)->WaitForLine("holding", seconds(120));
    EXPECT_TRUE(line.ok()) << ToString(line.status());
    return *std::move(process);
  }
  // Asks until the node answers: a question that failed says nothing.
  NodeStats Stat() {
    Result<NodeStats> stat = client_->Stat(kCall);
    WaitUntil(
        [&] {
          if (!stat.ok()) stat = client_->Stat(kCall);
          return stat.ok();
        },
        seconds(120));
    EXPECT_TRUE(stat.ok()) << ToString(stat.status());
    return stat.ok() ? *stat : NodeStats();
  }
  bool StatBecomes(const std::function<bool(const NodeStats&)>& wanted,
                   milliseconds timeout = seconds(120)) {
    return WaitUntil(
        [&] {
          const auto stat = client_->Stat(kCall);
          return stat.ok() && wanted(*stat);
        },
        timeout);
  }
  // Others go on: writes and reads of blocks that nobody else has.
  void ExpectServed(uint64_t first, uint64_t prompts) {
    for (uint64_t prompt = first; prompt < first + prompts; ++prompt) {
      const std::vector<BlockKey> keys = model_.MakePrompt(prompt);
      const WriteOutcome written = Write(*client_, model_, keys, 0, model_.whole());
      ASSERT_TRUE(written.status.ok()) << ToString(written.status);
      const ReadOutcome read = Read(*client_, model_, keys);
      ASSERT_TRUE(read.status.ok()) << ToString(read.status);
      ASSERT_TRUE(read.wrong.empty()) << read.wrong.front();
      // A full node may have evicted the newest tail already; what it promised must come.
      ASSERT_EQ(read.complete_blocks, read.matched_blocks);
      served_blocks_ += read.complete_blocks;
    }
  }

  const TemporaryDirectory directory_;
  const std::string socket_ = directory_.path() + "/node.sock";
  const FaultModel model_{FaultModelOptions{}};
  std::unique_ptr<Node> node_;
  std::unique_ptr<CacheClient> client_;
  uint64_t served_blocks_ = 0;
};

TEST_F(FaultLocalTest, WhatAKilledClientHeldComesBack) {
  Start();
  for (uint32_t round = 0; round < Rounds(5); ++round) {
    const auto holder = Hold(round % 2 == 0 ? "hold" : "read");
    const NodeStats held = Stat();
    EXPECT_GE(held.leases, 8u);
    EXPECT_GT(held.reservations, 0u);
    EXPECT_GT(held.reserved_bytes, 0u);
    holder->Kill();
    EXPECT_TRUE(StatBecomes([](const NodeStats& s) {
      return s.leases == 0 && s.reservations == 0 && s.reserved_bytes == 0 && s.sessions == 1;
    }));
    ExpectServed(100 + 20 * round, 20);
  }
}

TEST_F(FaultLocalTest, AStoppedClientKeepsItsOwnAndHoldsNobodyUp) {
  Start({"--lease.default_ttl", "3s", "--reservation.default_ttl", "3s"});
  // Blocks of 96 KiB.
  const FaultModel large({.model = "large", .dim = 128});
  ASSERT_TRUE(client_->OpenNamespace(large.spec(), kCall).ok());
  uint64_t large_prompt = 0;
  for (const std::string mode : {"hold", "read"}) {
    const auto holder = Hold(mode);
    holder->Signal(SIGSTOP);
    const auto evicted = [this] {
      uint64_t blocks = 0;
      for (const TierStat& tier : Stat().tiers) blocks += tier.evicted_blocks;
      return blocks;
    };
    const NodeStats before = Stat();
    // Longer than any deadline that the node could put to it, and with traffic all the time.
    const auto until = std::chrono::steady_clock::now() + seconds(6);
    uint64_t prompt = 1000;
    while (std::chrono::steady_clock::now() < until) ExpectServed(prompt++, 1);
    // And until the node is full and goes on without the blocks that it may not touch. Large blocks
    // fill it with a few prompts, however slow the machine is. Their number is the bound, not the
    // time.
    const uint64_t evicted_before = evicted();
    const uint64_t last_prompt = large_prompt + 3000;
    while (evicted() < evicted_before + 100) {
      ASSERT_LT(large_prompt, last_prompt) << Describe(Stat());
      const WriteOutcome written =
          Write(*client_, large, large.MakePrompt(large_prompt++), 0, large.whole(), seconds(60));
      ASSERT_TRUE(written.status.ok()) << ToString(written.status);
      ExpectServed(prompt++, 1);
    }
    // The prompts that it reads are there for others too.
    for (uint64_t held = 0; held < 8; ++held) {
      const std::vector<BlockKey> keys = model_.MakePrompt(held);
      const ReadOutcome read = Read(*client_, model_, keys);
      EXPECT_TRUE(read.status.ok()) << ToString(read.status);
      EXPECT_TRUE(read.wrong.empty());
      EXPECT_EQ(read.complete_blocks, keys.size());
    }
    const NodeStats stopped = Stat();
    EXPECT_GT(std::exchange(served_blocks_, 0), 0u);
    // Nobody reads or writes what it still could: no time-out took it away.
    EXPECT_GE(stopped.leases, 8u);
    EXPECT_TRUE(
        StatBecomes([&](const NodeStats& s) { return s.reservations == before.reservations; }));
    holder->Signal(SIGCONT);
    holder->Kill();
    EXPECT_TRUE(
        StatBecomes([](const NodeStats& s) { return s.leases == 0 && s.reservations == 0; }));
  }
}

TEST_F(FaultLocalTest, WhatAStoppedClientWasWritingOthersStore) {
  Start();
  const auto holder = Hold("hold");
  holder->Signal(SIGSTOP);
  // It has room for these blocks, and never commits them.
  const std::vector<BlockKey> keys =
      FaultModel({.tenant = "fault", .model = "never stored"}).MakePrompt(1);
  const WriteOutcome written = Write(*client_, model_, keys, 0, model_.whole());
  ASSERT_TRUE(written.status.ok()) << ToString(written.status);
  const ReadOutcome read = Read(*client_, model_, keys);
  ASSERT_TRUE(read.status.ok()) << ToString(read.status);
  EXPECT_TRUE(read.wrong.empty());
  EXPECT_EQ(read.complete_blocks, keys.size());
  EXPECT_GT(Stat().reservations, 0u);
  holder->Signal(SIGCONT);
  holder->Kill();
  EXPECT_TRUE(StatBecomes([](const NodeStats& s) { return s.reservations == 0; }));
}

TEST_F(FaultLocalTest, ADroppedTenantKeepsOnlyWhatAStoppedClientReads) {
  Start({"--disk.path", directory_.path() + "/disk", "--disk.capacity", "256MiB"});
  const auto used = [this](TierKind tier) {
    uint64_t bytes = 0;
    for (const auto& state : Stat().tiers) {
      if (state.tier == tier) bytes = state.used_bytes;
    }
    return bytes;
  };
  const auto holder = Hold("hold");
  const uint64_t own = used(TierKind::kHost);
  holder->Signal(SIGSTOP);
  for (uint64_t prompt = 100; used(TierKind::kHost) < 3 * own; ++prompt) ExpectServed(prompt, 1);
  ASSERT_TRUE(client_->Flush(kCall).ok());
  const auto admin = client::ConnectAdmin({.address = node_->address()});
  ASSERT_TRUE(admin.ok());
  ASSERT_TRUE((*admin)->DropTenant(model_.spec().tenant, kCall).ok());
  EXPECT_TRUE(WaitUntil(
      [&] { return used(TierKind::kHost) <= own && used(TierKind::kDisk) <= own; }, seconds(120)))
      << used(TierKind::kHost) << " in host and " << used(TierKind::kDisk) << " on disk, not "
      << own;
  EXPECT_GE(Stat().leases, 8u);
  ASSERT_TRUE(client_->OpenNamespace(model_.spec(), kCall).ok());
  ExpectServed(5000, 20);
  holder->Signal(SIGCONT);
  holder->Kill();
  EXPECT_TRUE(StatBecomes([](const NodeStats& s) { return s.leases == 0; }));
}

TEST_F(FaultLocalTest, LentBytesStayRightWhenTheNodeIsKilled) {
  class Sink final : public client::FetchSink {
   public:
    bool WantsLent() const override { return true; }
    Status OnSlice(const client::SliceInfo&, std::span<const std::byte>) override {
      return OkStatus();
    }
    Status OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                       std::shared_ptr<const client::LentHold> hold) override {
      kept.push_back({slice, data, std::move(hold)});
      return OkStatus();
    }
    void OnBlockFailed(uint32_t, client::MissReason) override {}
    struct Kept {
      client::SliceInfo slice;
      std::span<const std::byte> data;
      std::shared_ptr<const client::LentHold> hold;
    };
    std::vector<Kept> kept;
  };
  Start();
  // Only what came over gRPC lies where no client can write, and is lent. It comes first: the arena
  // has one segment, and what is written in place makes it one that clients can write to.
  auto network = client::Connect({.address = node_->address(), .path = client::PathChoice::kGrpc});
  ASSERT_TRUE(network.ok());
  ASSERT_TRUE((*network)->OpenNamespace(model_.spec(), kCall).ok());
  const std::vector<BlockKey> keys = model_.MakePrompt(3);
  ASSERT_TRUE(Write(**network, model_, keys, 0, model_.whole()).status.ok());
  Sink sink;
  {
    auto match = client_->Match(model_.fingerprint(), keys, {.deadline = seconds(60)});
    ASSERT_TRUE(match.ok());
    ASSERT_TRUE(client_->Fetch(match->lease, {}, sink, {}).ok());
  }
  ASSERT_FALSE(sink.kept.empty());
  ExpectServed(1, 1);
  node_->Kill();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(client_->Match(model_.fingerprint(), keys, {.deadline = milliseconds(200)}).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(60));
  ASSERT_TRUE(node_->Restart().ok());
  // The new node's memory is another: what was lent is as it was.
  ASSERT_TRUE(WaitUntil(
      [&] { return Write(*client_, model_, model_.MakePrompt(2), 0, model_.whole()).status.ok(); },
      seconds(120)));
  for (const auto& kept : sink.kept) {
    EXPECT_TRUE(
        model_.SliceIsRight(keys[kept.slice.block], kept.slice.part, kept.slice.layer, kept.data));
  }
  EXPECT_FALSE(sink.kept[0].hold->Pinned()) << "its session has ended";
  EXPECT_TRUE(WaitUntil(
      [&] {
        (void)Read(*client_, model_, keys);
        const ClientStats stats = client_->GetStats();
        return stats.path == Path::kLocal && stats.local_sessions == 2;
      },
      seconds(120)));
  sink.kept.clear();
  ExpectServed(1, 3);
}

TEST_F(FaultLocalTest, ANodeThatIsKilledUnderReadersCostsThemErrorsOnly) {
  Start();
  ExpectServed(0, 10);
  for (uint32_t round = 0; round < Rounds(3); ++round) {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> reads{0}, wrong{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 3; ++t) {
      readers.emplace_back([&] {
        for (uint64_t i = 0; !stop; ++i) {
          const ReadOutcome read = Read(*client_, model_, model_.MakePrompt(i % 10),
                                        {.match_deadline = milliseconds(200)});
          wrong += read.wrong.size();
          ++reads;
        }
      });
    }
    const uint64_t target = reads + 200;
    EXPECT_TRUE(WaitUntil([&] { return reads > target; }, seconds(120)));
    node_->Kill();
    EXPECT_TRUE(node_->Restart().ok());
    EXPECT_TRUE(WaitUntil([&] { return client_->GetStats().connected; }, seconds(120)));
    stop = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0u);
    ASSERT_TRUE(WaitUntil(
        [&] {
          return Write(*client_, model_, model_.MakePrompt(0), 0, model_.whole()).status.ok();
        },
        seconds(120)));
    ExpectServed(0, 10);
  }
}

TEST_F(FaultLocalTest, AnotherNodeBehindTheSocketIsNotUsed) {
  Start();
  // The first node's socket goes away, and a second node listens at its name.
  std::filesystem::rename(socket_, socket_ + ".moved");
  auto second = CacheNode::Start({"--local.socket", socket_});
  ASSERT_TRUE(second.ok()) << ToString(second.status());
  auto client = ConnectAndOpen(node_->address(), model_);
  const std::vector<BlockKey> keys = model_.MakePrompt(3);
  ASSERT_TRUE(Write(*client, model_, keys, 0, model_.whole()).status.ok());
  const ReadOutcome read = Read(*client, model_, keys);
  EXPECT_TRUE(read.status.ok()) << ToString(read.status);
  EXPECT_EQ(read.complete_blocks, keys.size());
  EXPECT_EQ(client->GetStats().path, Path::kGrpc);
  EXPECT_NE(client->GetStats().path_reason, "");
  // The one that was there before goes on where it is.
  ExpectServed(3, 2);
  EXPECT_EQ(client_->GetStats().path, Path::kLocal);
}

}  // namespace
}  // namespace cairn::fault
