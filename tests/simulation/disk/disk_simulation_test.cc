// The disk tier in the simulation: whatever the disk does, what was promised is there, and a seed
// that fails fails again. CAIRN_DISK_SEEDS sets how many seeds are played, CAIRN_DISK_FIRST_SEED
// the first.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "services/cache/store/tier/disk/extent_store.h"
#include "tests/simulation/disk/play.h"

namespace cairn::testing {
namespace {

uint64_t Setting(const char* name, uint64_t normal) {
  const char* text = std::getenv(name);
  return text == nullptr ? normal : std::strtoull(text, nullptr, 10);
}

DiskPlay PlayOf(uint64_t seed) {
  DiskPlay play{.seed = seed};
  // A third of them on a disk that does what it is told.
  if (seed % 3 != 0) play.troubles.fails = static_cast<uint32_t>(seed % 7);
  if (seed % 3 == 2) play.troubles.hangs = 3;
  return play;
}

void Print(const DiskPlay& play, const DiskOutcome& outcome) {
  std::printf("seed %llu:\n", static_cast<unsigned long long>(play.seed));
  for (const std::string& line : outcome.trace) std::printf("  %s\n", line.c_str());
}

TEST(DiskSimulationTest, KeepsItsPromisesOnADiskInTrouble) {
  DiskOutcome sum;
  const uint64_t first = Setting("CAIRN_DISK_FIRST_SEED", 1);
  const uint64_t end = first + Setting("CAIRN_DISK_SEEDS", 100);
  for (uint64_t seed = first; seed < end; ++seed) {
    const DiskPlay play = PlayOf(seed);
    const DiskOutcome outcome = Play(play);
    for (const std::string& problem : outcome.problems) ADD_FAILURE() << seed << ": " << problem;
    if (!outcome.problems.empty()) Print(play, outcome);
    sum.written += outcome.written;
    sum.moved += outcome.moved;
    sum.flushes += outcome.flushes;
    sum.kills += outcome.kills;
    sum.power_losses += outcome.power_losses;
    sum.promised += outcome.promised;
  }
  std::printf(
      "[          ] %llu extents written, %.1f MiB moved, %llu flushes, %llu kills, %llu "
      "power losses, %llu extents promised\n",
      static_cast<unsigned long long>(sum.written), static_cast<double>(sum.moved) / (1 << 20),
      static_cast<unsigned long long>(sum.flushes), static_cast<unsigned long long>(sum.kills),
      static_cast<unsigned long long>(sum.power_losses),
      static_cast<unsigned long long>(sum.promised));
  if (end - first < 20) return;  // One seed need not have everything.
  EXPECT_GT(sum.moved, 0u) << "the test does not test what it says";
  EXPECT_GT(sum.promised, 0u);
  EXPECT_GT(sum.kills, 0u);
  EXPECT_GT(sum.power_losses, 0u);
}

TEST(DiskSimulationTest, ASeedTakesTheSameCourseEachTime) {
  const DiskOutcome first = Play(PlayOf(5));
  const DiskOutcome second = Play(PlayOf(5));
  EXPECT_EQ(first.trace, second.trace);
  EXPECT_EQ(first.written, second.written);
}

// A database that could be synced after a segment that could not made a flush say OK.
TEST(DiskSimulationTest, AFlushFailsWhereASegmentCannotBeSynced) {
  using cache::disk::ExtentStore;
  Simulation simulation(1);
  simulation.Start([&] {
    constexpr uint64_t kCapacity = 6 << 20;
    FaultyDisk disk(simulation, {}, {.syncs_fail = 1000});
    const cache::disk::IoLanes lanes = disk.NewLanes();
    ExtentStore store({.capacity_bytes = kCapacity},
                      {.store = disk.records(),
                       .files = disk.files(),
                       .lanes = lanes,
                       .clock = simulation.clock(),
                       .start = TasksOf(simulation)},
                      ExtentStore::MapFor(kCapacity));
    ASSERT_TRUE(store.Recover([](const cache::Extent&, std::string_view) { return true; }).ok());
    const std::vector<std::byte> bytes(1000);
    const auto extent = store.Reserve(1000);
    ASSERT_TRUE(extent.ok());
    bool written = false;
    store.Write(*extent, "record", bytes, [&](const Status& status) { written = status.ok(); });
    simulation.Sleep(std::chrono::seconds(1));
    ASSERT_TRUE(written);
    EXPECT_EQ(store.Flush({}).code(), StatusCode::kUnavailable);
    disk.SetTroubles({});
    EXPECT_TRUE(store.Flush({}).ok());
  });
  simulation.Run();
}

// A process that was killed between making a file and syncing its name left it to the next one,
// whose blocks were gone with the file after a power loss.
TEST(DiskSimulationTest, FilesThatAKilledProcessMadeSurviveAPowerLoss) {
  using cache::disk::ExtentStore;
  Simulation simulation(1);
  simulation.Start([&] {
    constexpr uint64_t kCapacity = 6 << 20;
    constexpr uint32_t kFiles = 6;
    auto map = ExtentStore::MapFor(kCapacity);
    const uint64_t bytes = map.segment_bytes();
    FaultyDisk before(simulation, {}, {});
    for (uint32_t file = 0; file < kFiles; ++file) {
      ASSERT_TRUE(before.files().Make(file, bytes).ok());
    }
    FaultyDisk disk(simulation, before.Kill(), {});
    const cache::disk::IoLanes lanes = disk.NewLanes();
    ExtentStore store({.capacity_bytes = kCapacity},
                      {.store = disk.records(),
                       .files = disk.files(),
                       .lanes = lanes,
                       .clock = simulation.clock(),
                       .start = TasksOf(simulation)},
                      std::move(map));
    for (const auto& [file, size] : disk.FilesFound()) store.AddFile(file, size);
    ASSERT_TRUE(store.Recover([](const cache::Extent&, std::string_view) { return true; }).ok());
    EXPECT_EQ(disk.LosePower().files.size(), kFiles);
  });
  simulation.Run();
}

class DiskLieTest : public ::testing::TestWithParam<DiskLie> {};

// Each stands for a mistake of the tier: a sync that is forgotten, that comes after the records, an
// acknowledgement before the record.
TEST_P(DiskLieTest, IsFoundAndFoundAgain) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const DiskPlay play{.seed = seed, .troubles = {.lie = GetParam()}};
    const DiskOutcome outcome = Play(play);
    if (outcome.problems.empty()) continue;
    std::printf("[          ] seed %llu: %s\n", static_cast<unsigned long long>(seed),
                outcome.problems.front().c_str());
    EXPECT_EQ(Play(play).trace, outcome.trace);
    return;
  }
  ADD_FAILURE() << "no seed found it";
}

INSTANTIATE_TEST_SUITE_P(All, DiskLieTest,
                         ::testing::Values(DiskLie::kSyncDoesNothing, DiskLie::kSyncComesLate,
                                           DiskLie::kRecordsComeAfterwards));

}  // namespace
}  // namespace cairn::testing
