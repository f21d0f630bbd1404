// Flipped bits in the arena and in the files of the disk tier: what is served is right, or a miss;
// the node counts it and lives.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "tests/fault/support/damage.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {
namespace {

constexpr uint64_t kPrompts = 30;
constexpr char kDiskCapacity[] = "64MiB";  // Small segment files, of which most is in use.
constexpr size_t kCorrupt = static_cast<size_t>(client::MissReason::kCorrupt);

class FaultBitFlipTest : public ::testing::Test {
 protected:
  void StartNode(const std::vector<std::string>& args) {
    auto node = Node::Start(args);
    ASSERT_TRUE(node.ok()) << ToString(node.status());
    node_ = *std::move(node);
    client_ = ConnectAndOpen(node_->address(), model_);
  }

  // All prompts, and a set of their keys.
  void WriteAll() {
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) {
      prompts_.push_back(model_.MakePrompt(prompt));
      ASSERT_TRUE(WaitUntil(
          [&] {
            const WriteOutcome outcome =
                Write(*client_, model_, prompts_.back(), 0, model_.whole());
            return outcome.status.ok() && outcome.refused_parts == 0;
          },
          seconds(120)));
      for (const BlockKey& key : prompts_.back()) keys_.push_back(key);
      // A small arena evicts what it has not copied to disk if more comes at once.
      if (!flush_each_) continue;
      ASSERT_TRUE(client_->Flush({.deadline = seconds(10)}).ok());
    }
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
  }

  struct Sum {
    uint64_t complete = 0, missed = 0, failed = 0, corrupt = 0, wrong = 0, bytes = 0;
  };
  Sum ReadAll() {
    Sum sum;
    for (const auto& keys : prompts_) {
      const ReadOutcome outcome = Read(*client_, model_, keys);
      EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
      EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
      sum.complete += outcome.complete_blocks;
      sum.missed += keys.size() - outcome.complete_blocks;
      sum.failed += outcome.failed_blocks;
      sum.corrupt += outcome.misses[kCorrupt];
      sum.wrong += outcome.wrong.size();
      sum.bytes += outcome.verified_bytes;
    }
    return sum;
  }

  uint64_t AllBlocks() const {
    uint64_t blocks = 0;
    for (const auto& keys : prompts_) blocks += keys.size();
    return blocks;
  }

  // Flips one bit in the slices of each of `count` blocks. How many.
  Result<uint32_t> FlipInArena(uint32_t count) {
    CAIRN_ASSIGN_OR_RETURN(const ArenaMemory arena, ArenaMemory::Open(node_->process().pid()));
    const uint64_t header = format::HeaderBytes(options_.layers);
    std::shuffle(keys_.begin(), keys_.end(), random_);
    for (uint32_t i = 0; i < count; ++i) {
      const std::vector<std::byte> part = model_.MakePart(keys_[i], model_.whole());
      CAIRN_ASSIGN_OR_RETURN(const std::optional<uint64_t> at, arena.FindOnPage(part));
      if (!at)
        return Errorf(StatusCode::kInternal, "block {} does not lie in the arena", keys_[i].Hex());
      CAIRN_RETURN_IF_ERROR(arena.FlipBit(*at + header + random_() % (part.size() - header),
                                          static_cast<unsigned>(random_() % 8)));
    }
    return count;
  }

  static bool MayNot(const Status& status) {
    return status.code() == StatusCode::kPermissionDenied;
  }

  std::mt19937_64 random_{Seed()};
  const TemporaryDirectory directory_;
  const std::string disk_ = directory_.path() + "/disk";
  const FaultModelOptions options_{.dim = 64};
  const FaultModel model_{options_};
  std::unique_ptr<Node> node_;
  std::unique_ptr<client::CacheClient> client_;
  std::vector<std::vector<BlockKey>> prompts_;
  std::vector<BlockKey> keys_;
  bool flush_each_ = false;  // Each prompt is on disk before the next one is written.
};

TEST_F(FaultBitFlipTest, InArenaIsAMiss) {
  StartNode({});
  WriteAll();
  ASSERT_EQ(ReadAll().complete, AllBlocks());
  const Result<uint32_t> flipped = FlipInArena(10);
  if (MayNot(flipped.status())) GTEST_SKIP() << ToString(flipped.status());
  ASSERT_TRUE(flipped.ok()) << ToString(flipped.status());
  const Sum sum = ReadAll();
  EXPECT_EQ(sum.wrong, 0u);
  EXPECT_GT(sum.corrupt, 0u);
  EXPECT_GT(sum.complete, 0u);
  // Some lie behind others in a path, and are found only when those are back.
  EXPECT_GT(client_->Stat()->corrupt_blocks, 0u);
  EXPECT_LE(client_->Stat()->corrupt_blocks, *flipped);
  // What a reader found last may be counted between two looks.
  const auto least = static_cast<double>(client_->Stat()->corrupt_blocks);
  const double counted = *node_->Metric("cairn_checksum_failures_total");
  EXPECT_GE(counted, least);
  EXPECT_LE(counted, static_cast<double>(client_->Stat()->corrupt_blocks));
  EXPECT_GT(*node_->Metric("cairn_miss_blocks_total", "reason=\"corrupt\""), 0);
  // Removed: they can be written again, and are whole then.
  for (int tries = 0; tries < 12 && ReadAll().missed > 0; ++tries) {
    for (const auto& keys : prompts_)
      ASSERT_TRUE(Write(*client_, model_, keys, 0, model_.whole()).status.ok());
  }
  EXPECT_EQ(ReadAll().complete, AllBlocks());
  EXPECT_EQ(client_->Stat()->corrupt_blocks, *flipped);
  EXPECT_EQ(StillHeld(*client_, 1, seconds(120)), "");
  EXPECT_EQ(UsageMismatch(*client_, {model_.PartBytes(model_.whole())}, seconds(120)), "");
}

TEST_F(FaultBitFlipTest, InArenaIsServedFromDisk) {
  StartNode({"--disk.path", disk_, "--disk.min_free", "0"});
  WriteAll();
  ASSERT_TRUE(client_->Flush({.deadline = seconds(10)}).ok());
  const Result<uint32_t> flipped = FlipInArena(10);
  if (MayNot(flipped.status())) GTEST_SKIP() << ToString(flipped.status());
  ASSERT_TRUE(flipped.ok()) << ToString(flipped.status());
  EXPECT_EQ(ReadAll().wrong, 0u);
  EXPECT_EQ(ReadAll().complete, AllBlocks());
  EXPECT_EQ(client_->Stat()->corrupt_blocks, *flipped);
  EXPECT_EQ(UsageMismatch(*client_, {model_.PartBytes(model_.whole())}, seconds(120)), "");
}

// Random pages under load: headers, parts that are being written, rooms that are free.
TEST_F(FaultBitFlipTest, AnywhereInArenaUnderLoad) {
  StartNode({"--disk.path", disk_, "--disk.min_free", "0", "--host.capacity", "16MiB",
             "--disk.flush_after", "50ms"});
  {
    const auto arena = ArenaMemory::Open(node_->process().pid());
    if (MayNot(arena.status())) GTEST_SKIP() << ToString(arena.status());
    ASSERT_TRUE(arena.ok()) << ToString(arena.status());
    std::vector<std::unique_ptr<Loader>> loaders;
    for (const char* mode : {"both", "reader"}) {
      auto loader =
          Loader::Start(node_->address(), options_, random_() % 1'000'000, {"--mode", mode});
      ASSERT_TRUE(loader.ok()) << ToString(loader.status());
      loaders.push_back(*std::move(loader));
    }
    const uint32_t flips = Rounds(3000);
    for (uint32_t i = 0; i < flips; ++i) {
      ASSERT_TRUE(
          arena->FlipBit(random_() % arena->bytes(), static_cast<unsigned>(random_() % 8)).ok());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    uint64_t bytes = 0, corrupt = 0;
    for (auto& loader : loaders) {
      const Result<std::string> report = loader->Finish();
      ASSERT_TRUE(report.ok()) << ToString(report.status());
      bytes += Counter(*report, "served_bytes");
      corrupt += Counter(*report, "corrupt");
    }
    EXPECT_GT(bytes, 0u);
    std::printf("%u flips, %.1f MiB served and right, %llu corrupt blocks seen by clients\n", flips,
                static_cast<double>(bytes) / 1048576, static_cast<unsigned long long>(corrupt));
  }
  ASSERT_TRUE(node_->process().running()) << node_->process().err();
  EXPECT_GT(client_->Stat()->corrupt_blocks, 0u);
  EXPECT_EQ(StillHeld(*client_, 1, seconds(120)), "");
  EXPECT_EQ(LeftAfterDrop(*node_, *client_, options_.tenant, seconds(120)), "");
}

TEST_F(FaultBitFlipTest, InValueFilesOfAStoppedNode) {
  const std::vector<std::string> args = {"--disk.path",     disk_,        "--disk.min_free", "0",
                                         "--disk.capacity", kDiskCapacity};
  StartNode(args);
  WriteAll();
  ASSERT_TRUE(client_->Flush({.deadline = seconds(10)}).ok());
  node_->Kill();
  const std::string whole = directory_.path() + "/whole";
  CopyDirectory(disk_, whole);
  uint64_t corrupt = 0, complete = 0, refused = 0, bytes = 0;
  for (uint32_t round = 0; round < Rounds(8); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    CopyDirectory(whole, disk_);
    const std::vector<std::string> files = FilesUnder(disk_, ".seg");
    ASSERT_FALSE(files.empty());
    // Most bytes are values; what is damaged elsewhere may keep the database from opening at all.
    const std::string& largest =
        *std::max_element(files.begin(), files.end(), [](const auto& a, const auto& b) {
          return std::filesystem::file_size(a) < std::filesystem::file_size(b);
        });
    ASSERT_TRUE(FlipBitsInFile(round % 4 == 3 ? files[random_() % files.size()] : largest,
                               static_cast<uint32_t>(1 + random_() % 20), random_)
                    .ok());
    if (const Status started = node_->Restart(); !started.ok()) {
      // Damage to what the database needs to open is refused in words, and wiped when told so.
      ++refused;
      EXPECT_NE(Message(started).find("damage"), std::string::npos) << ToString(started);
      const auto wiped =
          Node::Start({"--disk.path", disk_, "--disk.min_free", "0", "--disk.capacity",
                       kDiskCapacity, "--disk.wipe_on_damage", "true"});
      ASSERT_TRUE(wiped.ok()) << ToString(wiped.status());
      EXPECT_EQ(ConnectTo((*wiped)->address())->Stat({.deadline = seconds(5)})->blocks, 0u);
      continue;
    }
    ASSERT_TRUE(
        WaitUntil([&] { return client_->OpenNamespace(model_.spec()).ok(); }, seconds(120)));
    for (int pass = 0; pass < 2; ++pass) {
      const Sum sum = ReadAll();
      EXPECT_EQ(sum.wrong, 0u);
      corrupt += sum.corrupt;
      complete += sum.complete;
      bytes += sum.bytes;
    }
    ASSERT_TRUE(node_->process().running()) << node_->process().err();
    node_->Kill();
  }
  std::printf("%.1f MiB served and right, %llu corrupt blocks, %llu damaged databases refused\n",
              static_cast<double>(bytes) / 1048576, static_cast<unsigned long long>(corrupt),
              static_cast<unsigned long long>(refused));
  EXPECT_GT(corrupt, 0u);
  EXPECT_GT(complete, 0u);
}

TEST_F(FaultBitFlipTest, InValueFilesOfARunningNode) {
  StartNode({"--disk.path", disk_, "--disk.min_free", "0", "--disk.capacity", kDiskCapacity,
             "--host.capacity", "2MiB"});
  flush_each_ = true;
  WriteAll();
  ASSERT_TRUE(client_->Flush({.deadline = seconds(10)}).ok());
  ASSERT_EQ(ReadAll().complete, AllBlocks()) << "the disk tier does not hold what left the arena";
  const std::vector<std::string> files = FilesUnder(disk_, ".seg");
  ASSERT_FALSE(files.empty());
  uint64_t corrupt = 0;
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(FlipBitsInFile(files[random_() % files.size()], 5, random_).ok());
    const Sum sum = ReadAll();
    EXPECT_EQ(sum.wrong, 0u);
    corrupt += sum.corrupt;
    if (corrupt > 3) break;
  }
  EXPECT_GT(corrupt, 0u);
  EXPECT_GT(*node_->Metric("cairn_checksum_failures_total"), 0);
  ASSERT_TRUE(node_->process().running()) << node_->process().err();
  // The node goes on: what was lost is written again.
  for (int tries = 0; tries < 30 && ReadAll().missed > 0; ++tries) {
    for (const auto& keys : prompts_)
      ASSERT_TRUE(Write(*client_, model_, keys, 0, model_.whole()).status.ok());
  }
  EXPECT_EQ(StillHeld(*client_, 1, seconds(120)), "");
}

// Every other file of the directory: the node starts and serves what is right, or refuses in words.
// It does not crash.
TEST_F(FaultBitFlipTest, InOtherFilesOfAStoppedNode) {
  StartNode({"--disk.path", disk_, "--disk.min_free", "0", "--disk.capacity", kDiskCapacity});
  WriteAll();
  ASSERT_TRUE(client_->Flush({.deadline = seconds(10)}).ok());
  node_->Kill();
  const std::string whole = directory_.path() + "/whole";
  CopyDirectory(disk_, whole);
  uint32_t started = 0, refused = 0, silent = 0;
  for (const std::string& original : FilesUnder(whole)) {
    if (original.ends_with(".seg")) continue;
    const std::string name = original.substr(whole.size());
    SCOPED_TRACE(name);
    CopyDirectory(whole, disk_);
    ASSERT_TRUE(FlipBitsInFile(disk_ + name, 3, random_).ok());
    auto process =
        Process::Start({.argv = {testing::Binary("cairn-cache"), "--listen", node_->address(),
                                 "--admin.listen", node_->admin(), "--host.capacity", "64MiB",
                                 "--disk.path", disk_, "--disk.min_free", "0", "--disk.capacity",
                                 kDiskCapacity, "--log.level", "error"}});
    ASSERT_TRUE(process.ok());
    if ((*process)->WaitForLine("ready ", seconds(120)).ok()) {
      ++started;
      ASSERT_TRUE(
          WaitUntil([&] { return client_->OpenNamespace(model_.spec()).ok(); }, seconds(120)));
      const Sum sum = ReadAll();
      EXPECT_EQ(sum.wrong, 0u);
      ASSERT_TRUE((*process)->running()) << (*process)->err();
      const bool said = *node_->Metric("cairn_disk_corrupt_records_total") > 0;
      // RocksDB takes a length that points behind the end of its log for a write that was cut.
      silent += sum.complete < AllBlocks() && !said && name.ends_with(".log");
      if (!name.ends_with(".log")) {
        EXPECT_TRUE(sum.complete == AllBlocks() || said)
            << sum.complete << " of " << AllBlocks() << " blocks, and not a word";
      }
    } else {
      ++refused;
      const auto exit = (*process)->WaitExit(seconds(120));
      ASSERT_TRUE(exit.ok()) << "neither ready nor ended";
      EXPECT_TRUE(exit->exited) << "ended by signal " << exit->code << ": " << (*process)->err();
      EXPECT_FALSE((*process)->err().empty());
    }
    (*process)->Kill();
  }
  std::printf("%u directories opened, %u refused, %u logs lost blocks without a word\n", started,
              refused, silent);
  EXPECT_LE(silent, 1u);
  EXPECT_GT(started + refused, 0u);
}

}  // namespace
}  // namespace cairn::fault
