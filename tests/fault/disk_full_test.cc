// The disk tier's file system fills up: commits succeed, what is in RAM is served, and writing goes
// on when there is room again.

#include <gtest/gtest.h>

#include "tests/fault/support/fault_support.h"
#include "tests/fault/support/small_disk.h"

namespace cairn::fault {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Case {
  const char* name;
  // The node stops writing before the disk is full, or RocksDB runs into it.
  const char* min_free;
};

class FaultDiskFullTest : public ::testing::TestWithParam<Case> {};

TEST_P(FaultDiskFullTest, NodeServesFromRamAndRecovers) {
  const TemporaryDirectory directory;
  // Before any thread is made.
  const auto disk = SmallDisk::Mount(directory.path(), 96 * kMiB);
  if (disk.status().code() == StatusCode::kPermissionDenied)
    GTEST_SKIP() << ToString(disk.status());
  ASSERT_TRUE(disk.ok()) << ToString(disk.status());
  ASSERT_TRUE((*disk)->TakeAway(48 * kMiB).ok());
  // A large prompt's blocks are 192 KiB; the arena holds what the test writes.
  const FaultModelOptions options{.dim = 256, .depth = 20};
  const FaultModel model(options);
  auto node = Node::Start({"--host.capacity", "192MiB", "--disk.path", directory.path() + "/disk",
                           "--disk.capacity", "512MiB", "--disk.min_free", GetParam().min_free,
                           "--disk.flush_after", "50ms"});
  ASSERT_TRUE(node.ok()) << ToString(node.status());
  auto client = ConnectAndOpen((*node)->address(), model);

  // Twice as much as there is room for.
  std::vector<std::vector<BlockKey>> prompts;
  uint64_t stored = 0;
  for (uint64_t prompt = 0; stored < 96 * kMiB; ++prompt) {
    prompts.push_back(model.MakePrompt(prompt));
    const WriteOutcome outcome = Write(*client, model, prompts.back(), 0, model.whole());
    ASSERT_TRUE(outcome.status.ok()) << ToString(outcome.status);
    ASSERT_EQ(outcome.refused_parts, 0u)
        << "a full disk refused a commit: " << ToString(outcome.refused);
    stored += outcome.stored_bytes;
  }
  const auto read_all = [&] {
    uint64_t missed = 0;
    for (const auto& keys : prompts) {
      const ReadOutcome outcome = Read(*client, model, keys);
      EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
      EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
      missed += keys.size() - outcome.complete_blocks;
    }
    return missed;
  };
  EXPECT_EQ(read_all(), 0u) << "RAM holds it all";
  // The disk cannot hold it all, and the node does not say that it does.
  EXPECT_FALSE(client->Flush({.deadline = seconds(2)}).ok());
  EXPECT_EQ(read_all(), 0u);
  ASSERT_TRUE((*node)->process().running()) << (*node)->process().err();
  EXPECT_EQ(StillHeld(*client, 1, seconds(120)), "");
  const uint64_t full_blocks = Tier(*client->Stat(), client::TierKind::kDisk)->blocks;
  std::printf("full with %llu blocks on disk of %llu, %.1f MiB free\n",
              static_cast<unsigned long long>(full_blocks),
              static_cast<unsigned long long>(client->Stat()->blocks),
              static_cast<double>((*disk)->FreeBytes()) / kMiB);

  // Killed while full: it starts again, and what it has is right.
  (*node)->Kill();
  ASSERT_TRUE((*node)->Restart().ok());
  ASSERT_TRUE(WaitUntil([&] { return client->OpenNamespace(model.spec()).ok(); }, seconds(120)));
  read_all();

  // Room again.
  ASSERT_TRUE((*disk)->TakeAway(0).ok());
  const std::vector<BlockKey> last = model.MakePrompt(1'000'000);
  ASSERT_TRUE(WaitUntil(
      [&] {
        const WriteOutcome outcome = Write(*client, model, last, 0, model.whole());
        return outcome.status.ok() && outcome.refused_parts == 0;
      },
      seconds(120)));
  EXPECT_TRUE(WaitUntil([&] { return client->Flush({.deadline = seconds(2)}).ok(); }, seconds(120)))
      << Describe(*client->Stat());
  EXPECT_EQ(client->Stat()->unflushed_bytes, 0u);
  (*node)->Kill();
  ASSERT_TRUE((*node)->Restart().ok());
  ASSERT_TRUE(WaitUntil([&] { return client->OpenNamespace(model.spec()).ok(); }, seconds(120)));
  const ReadOutcome outcome = Read(*client, model, last);
  EXPECT_EQ(outcome.complete_blocks, last.size())
      << "flushed after the disk had room again, and lost";
  EXPECT_TRUE(outcome.wrong.empty());
}

// As before, but nothing dies: what could not be copied is copied once there is room.
TEST_P(FaultDiskFullTest, CopiesCatchUp) {
  const TemporaryDirectory directory;
  const auto disk = SmallDisk::Mount(directory.path(), 128 * kMiB);
  if (disk.status().code() == StatusCode::kPermissionDenied)
    GTEST_SKIP() << ToString(disk.status());
  ASSERT_TRUE(disk.ok()) << ToString(disk.status());
  ASSERT_TRUE((*disk)->TakeAway(96 * kMiB).ok());
  const FaultModelOptions options{.dim = 256, .depth = 20};
  const FaultModel model(options);
  auto node = Node::Start({"--host.capacity", "128MiB", "--disk.path", directory.path() + "/disk",
                           "--disk.capacity", "512MiB", "--disk.min_free", GetParam().min_free,
                           "--disk.flush_after", "50ms"});
  ASSERT_TRUE(node.ok()) << ToString(node.status());
  auto client = ConnectAndOpen((*node)->address(), model);
  std::vector<std::vector<BlockKey>> prompts;
  uint64_t stored = 0;
  for (uint64_t prompt = 0; stored < 48 * kMiB; ++prompt) {
    prompts.push_back(model.MakePrompt(prompt));
    const WriteOutcome outcome = Write(*client, model, prompts.back(), 0, model.whole());
    ASSERT_TRUE(outcome.status.ok() && outcome.refused_parts == 0)
        << ToString(outcome.status) << ToString(outcome.refused);
    stored += outcome.stored_bytes;
  }
  EXPECT_FALSE(client->Flush({.deadline = seconds(1)}).ok());
  ASSERT_TRUE((*disk)->TakeAway(0).ok());
  EXPECT_TRUE(WaitUntil([&] { return client->Flush({.deadline = seconds(2)}).ok(); }, seconds(120)))
      << Describe(*client->Stat());
  const auto stats = client->Stat();
  EXPECT_EQ(Tier(*stats, client::TierKind::kDisk)->blocks, stats->blocks) << Describe(*stats);
  (*node)->Kill();
  ASSERT_TRUE((*node)->Restart().ok());
  ASSERT_TRUE(WaitUntil([&] { return client->OpenNamespace(model.spec()).ok(); }, seconds(120)));
  for (const auto& keys : prompts) {
    const ReadOutcome outcome = Read(*client, model, keys);
    EXPECT_EQ(outcome.complete_blocks, keys.size())
        << ToString(outcome.status) << ", matched " << outcome.matched_blocks << ", failed "
        << outcome.failed_blocks << "; " << Describe(*client->Stat());
    EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
  }
}

INSTANTIATE_TEST_SUITE_P(All, FaultDiskFullTest,
                         ::testing::Values(Case{"StopsBefore", "8MiB"}, Case{"RunsIntoIt", "0"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cairn::fault
