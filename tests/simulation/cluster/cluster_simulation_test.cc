// Clusters with random troubles, and what they must be able to do.

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "common/log/log.h"
#include "tests/simulation/cluster/schedule.h"
#include "tests/simulation/cluster/targets.h"

namespace cairn::testing {
namespace {

// Builds with a sanitizer are ten times slower: they play fewer seeds, and count no targets, which
// are the same in every build.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAIRN_SANITIZED 1
constexpr uint64_t kSeeds = 150;
constexpr uint64_t kWholeSeeds = 10;
#else
#define CAIRN_SANITIZED 0
constexpr uint64_t kSeeds = 1000;
constexpr uint64_t kWholeSeeds = 60;
#endif

class ClusterSimulationTest : public ::testing::Test {
 protected:
  // That nodes go away is what happens here.
  void SetUp() override { log::Configure({.level = log::Level::kError}); }
};

void ExpectMet(const std::vector<TargetRow>& rows) {
  for (const TargetRow& row : rows) EXPECT_TRUE(row.met()) << Table({row});
}

void ExpectTheSameEachTime(uint64_t seeds, bool whole) {
  std::set<uint64_t> traces;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    ClusterSchedule schedule = MakeSchedule(seed);
    schedule.whole = whole;
    const PlayResult first = Play(schedule);
    EXPECT_EQ(Play(schedule).trace, first.trace) << seed;
    EXPECT_TRUE(traces.insert(first.trace).second) << seed;
  }
}

// `cairn_cluster_simulation --seed` plays one of them again.
void PlaySeeds(uint64_t first, uint64_t seeds, bool whole) {
  std::cout << seeds << " seeds from " << first << " on\n";
  uint64_t served = 0, outdated = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    ClusterSchedule schedule = MakeSchedule(seed);
    schedule.whole = whole;
    const PlayResult result = Play(schedule);
    served += result.served_by_peers;
    outdated += result.outdated;
    if (result.wrong.empty()) continue;
    FAIL() << "seed " << seed << ": " << result.wrong.front() << "\n" << ToText(Shorten(schedule));
  }
  // Otherwise the seeds show nothing.
  EXPECT_GT(served, seeds);
  std::cout << served << " requests served by members, " << outdated << " copies outdated\n";
}

TEST_F(ClusterSimulationTest, ASeedAlwaysPlaysTheSame) { ExpectTheSameEachTime(10, false); }
TEST_F(ClusterSimulationTest, AWholeEngineAlwaysPlaysTheSame) { ExpectTheSameEachTime(3, true); }

TEST_F(ClusterSimulationTest, NoTroubleBreaksAnInvariant) {
  // New seeds each day.
  const auto day = std::chrono::duration_cast<std::chrono::days>(
      std::chrono::system_clock::now().time_since_epoch());
  PlaySeeds(static_cast<uint64_t>(day.count()) * 1000, kSeeds, false);
}
// Always the same seeds.

TEST_F(ClusterSimulationTest, NoTroubleBreaksAnInvariantOfWholeEngines) {
  PlaySeeds(20782000, kWholeSeeds, true);
}

#if !CAIRN_SANITIZED
TEST_F(ClusterSimulationTest, DirectoriesAreEven) { ExpectMet(MeasureBalance(1000)); }

TEST_F(ClusterSimulationTest, SevenThatWantOnePrefixShareTheCopies) {
  ExpectMet(MeasureHerd(8, kEight));
}

TEST_F(ClusterSimulationTest, WhenMembersComeAndGoMostIsStillFound) { ExpectMet(MeasureChurn(40)); }

TEST_F(ClusterSimulationTest, NoViewChangesWhileDiscoverySleeps) {
  ExpectMet(MeasureSleepingDiscovery());
}
#endif

TEST_F(ClusterSimulationTest, TwoVersionsWorkTogether) { ExpectMet(MeasureTwoVersions()); }

}  // namespace
}  // namespace cairn::testing
