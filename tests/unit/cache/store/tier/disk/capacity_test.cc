// Capacity that grows and shrinks by factors of 100, with few descriptors.

#include <sys/resource.h>

#include <filesystem>
#include <map>

#include "tests/unit/cache/store/tier/disk/disk_fixture.h"

namespace cairn::cache::testing {
namespace {

using conformance::Pattern;
using conformance::WriteAndWait;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

// Lowers the soft limit while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t most) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit low{std::min(most, before_.rlim_max), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class CapacityTest : public DiskFixture {
 protected:
  using Kept = std::map<uint64_t, std::pair<uint64_t, Extent>>;  // By id: seed and extent.

  // Writes `bytes` in extents of `length`, and releases the oldest when there is no room.
  static void Churn(DiskTier& tier, uint64_t bytes, uint32_t length, uint64_t first_seed,
                    Kept* kept) {
    uint64_t seed = first_seed;
    for (uint64_t written = 0; written < bytes; written += length, ++seed) {
      for (int tries = 0;; ++tries) {
        ASSERT_LT(tries, 100000);
        const auto extent = tier.Reserve(length);
        Status status = extent.status();
        if (extent.ok()) {
          status = WriteAndWait(tier, *extent, std::to_string(seed), Pattern(seed, length));
          if (status.ok()) {
            (*kept)[extent->id] = {seed, *extent};
            break;
          }
          tier.Release(*extent);
        }
        ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << ToString(status);
        const VictimGroup victims = tier.NextVictims();
        for (const auto& member : victims.members) {
          tier.Release(member.extent);
          kept->erase(member.extent.id);
        }
        if (victims.members.empty()) {
          ASSERT_FALSE(kept->empty());
          tier.Release(kept->begin()->second.second);
          kept->erase(kept->begin());
        }
      }
    }
  }
  static Kept Found(const std::vector<Extent>& found, const Kept& before) {
    Kept kept;
    for (const Extent& extent : found) {
      const auto it = before.find(extent.id);
      EXPECT_NE(it, before.end());
      if (it != before.end()) kept.insert(*it);
    }
    return kept;
  }
  static void ExpectAll(DiskTier& tier, const Kept& kept) {
    for (const auto& [id, seed_and_extent] : kept)
      ExpectBytes(tier, seed_and_extent.first, seed_and_extent.second);
  }
};

TEST_F(CapacityTest, GrowsAHundredTimesWithFewDescriptors) {
  Kept kept;
  {
    const auto tier = Open(Options(16 * kMiB));
    Churn(*tier, 14 * kMiB, 1 << 20, 1, &kept);
  }
  const FewDescriptors few(OpenDescriptors() + 100);
  std::vector<Extent> found;
  {
    const auto tier = Open(Options(1600 * kMiB), &found);
    ASSERT_NE(tier, nullptr);
    EXPECT_EQ(found.size(), kept.size());
    ExpectAll(*tier, kept);
    // A block larger than the first value files.
    EXPECT_GE(tier->max_extent_bytes(), 16 * kMiB);
    const Extent large = Put(*tier, 1000, 16 * kMiB);
    kept[large.id] = {1000, large};
    Churn(*tier, 700 * kMiB, 4 << 20, 2000, &kept);
    EXPECT_EQ(kept.size(), 14u + 1 + 175) << "nothing had to go";
    ExpectAll(*tier, kept);
    EXPECT_LT(ValueFilesOnDisk().size(), 64u);
  }
  found.clear();
  const auto tier = Open(Options(1600 * kMiB), &found);
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(found.size(), kept.size());
  ExpectAll(*tier, kept);
}

// A directory that an earlier build filled after its capacity had grown: many small files.
TEST_F(CapacityTest, ManySmallFilesNeedFewDescriptors) {
  Kept kept;
  {
    const auto tier = Open(Options(16 * kMiB));
    Churn(*tier, 2 * kMiB, 1 << 20, 1, &kept);
  }
  for (int i = 20; i < 400; ++i) {
    const std::string path = directory_.path() + fmt::format("/values/{:06}.seg", i);
    std::filesystem::copy_file(directory_.path() + "/values/000000.seg", path);
  }
  const FewDescriptors few(OpenDescriptors() + 100);
  std::vector<Extent> found;
  const auto tier = Open(Options(1600 * kMiB), &found);
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(found.size(), kept.size());
  ExpectAll(*tier, kept);
  Churn(*tier, 100 * kMiB, 1 << 20, 100, &kept);
  ExpectAll(*tier, kept);
}

TEST_F(CapacityTest, ShrinksAHundredTimes) {
  Kept kept;
  {
    const auto tier = Open(Options(1600 * kMiB));
    Churn(*tier, 300 * kMiB, 1 << 20, 1, &kept);
  }
  std::vector<Extent> found;
  {
    const auto tier = Open(Options(16 * kMiB), &found);
    ASSERT_NE(tier, nullptr);
    EXPECT_LE(tier->GetStats().used_bytes, 16 * kMiB) << "over-full from the start";
    EXPECT_GE(found.size(), 8u) << "nothing of what fits was kept";
    kept = Found(found, kept);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(kept.rbegin()->second.first, 300u) << "the newest is not among them";
    ExpectAll(*tier, kept);
    Churn(*tier, 64 * kMiB, 1 << 20, 1000, &kept);
    ExpectAll(*tier, kept);
  }
  // The directory has come down to what the capacity allows.
  EXPECT_LE(ValueBytesOnDisk(), 24 * kMiB);
  found.clear();
  const auto tier = Open(Options(16 * kMiB), &found);
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(found.size(), kept.size());
  ExpectAll(*tier, kept);
}

TEST_F(CapacityTest, GrowsAndShrinksAgainAndAgain) {
  Kept kept;
  uint64_t seed = 1;
  for (const uint64_t capacity : {16, 160, 16, 400, 40, 20, 200}) {
    SCOPED_TRACE(capacity);
    std::vector<Extent> found;
    const auto tier = Open(Options(capacity * kMiB), &found);
    ASSERT_NE(tier, nullptr);
    EXPECT_LE(tier->GetStats().used_bytes, capacity * kMiB);
    kept = Found(found, kept);
    ASSERT_FALSE(HasFailure());
    Churn(*tier, capacity * kMiB * 3 / 2, 700 << 10, seed, &kept);
    ASSERT_FALSE(HasFailure());
    seed += 10000;
    ExpectAll(*tier, kept);
    EXPECT_GE(tier->GetStats().used_bytes, capacity * kMiB / 2);
  }
}

}  // namespace
}  // namespace cairn::cache::testing
