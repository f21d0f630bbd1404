#include "services/cache/store/tier/host_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

std::unique_ptr<HostTier> Make(uint64_t capacity, uint64_t segment = 0, bool prefault = false) {
  auto tier = HostTier::Create(
      {.capacity_bytes = capacity, .segment_bytes = segment, .prefault = prefault});
  CAIRN_CHECK(tier.ok());
  return std::move(*tier);
}

TEST(HostTierTest, BadOptionsAreNamed) {
  EXPECT_THAT(HostTier::Create({.capacity_bytes = 0}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'capacity_bytes': got 0")));
  EXPECT_THAT(HostTier::Create({.capacity_bytes = kMiB, .segment_bytes = 4096}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'segment_bytes': got 4096")));
}

TEST(HostTierTest, MoreThanTheMachineHasIsRefusedWithNumbers) {
  EXPECT_THAT(HostTier::Create({.capacity_bytes = uint64_t{2} << 40}),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("got 2199023255552, expected at most"),
                             AnyOf(HasSubstr("machine"), HasSubstr("control group")))));
}

TEST(HostTierTest, SegmentsAreNamedSealedMemfds) {
  const auto tier = Make(10 * kMiB, 4 * kMiB);
  ASSERT_EQ(tier->segment_count(), 3u);
  EXPECT_EQ(tier->segment(2).offset, 8 * kMiB);
  EXPECT_EQ(tier->segment(2).bytes, 2 * kMiB);
  for (size_t i = 0; i < 3; ++i) {
    const int fd = tier->segment(i).fd;
    EXPECT_EQ(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_THAT(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string(),
                HasSubstr("cairn-arena-" + std::to_string(i)));
  }
}

TEST(HostTierTest, AnotherMappingOfTheSegmentSeesTheBytes) {
  const auto tier = Make(8 * kMiB, 4 * kMiB);
  ASSERT_OK(tier->Reserve(4 * kMiB));
  const auto extent = tier->Reserve(5000);
  ASSERT_OK(extent);
  std::memset(tier->Map(*extent).data(), 0x5A, 5000);
  const HostTier::ArenaSegment& segment = tier->segment(extent->id / (4 * kMiB));
  void* other = mmap(nullptr, segment.bytes, PROT_READ, MAP_SHARED, segment.fd, 0);
  ASSERT_NE(other, MAP_FAILED);
  const auto* bytes = static_cast<const unsigned char*>(other) + (extent->id - segment.offset);
  EXPECT_EQ(bytes[0], 0x5A);
  EXPECT_EQ(bytes[4999], 0x5A);
  munmap(other, segment.bytes);
}

TEST(HostTierTest, SegmentsGrowWithTheArenaByDefault) {
  EXPECT_EQ(Make(3 * kMiB)->max_extent_bytes(), 3 * kMiB);
  EXPECT_EQ(Make(200 * kMiB)->max_extent_bytes(), 64 * kMiB);
  auto large = HostTier::Create(
      {.capacity_bytes = uint64_t{100} << 30, .prefault = false, .check_memory = false});
  ASSERT_OK(large);
  EXPECT_LE((*large)->segment_count(), 512u);
  EXPECT_EQ((*large)->max_extent_bytes(), 256 * kMiB);
}

TEST(HostTierTest, WasteInsideExtentsIsBoundedAndCounted) {
  const auto tier = Make(64 * kMiB);
  std::mt19937_64 rng(3);
  for (int i = 0; i < 40; ++i) {
    const auto length = static_cast<uint32_t>(32768 + rng() % kMiB);
    ASSERT_OK(tier->Reserve(length));
  }
  const HostTierStats stats = tier->GetHostStats();
  const uint64_t used = tier->GetStats().used_bytes;
  EXPECT_GT(used, stats.asked_bytes);
  EXPECT_LE(static_cast<double>(used), 1.125 * static_cast<double>(stats.asked_bytes));
}

TEST(HostTierTest, SegmentsThatEmptyServeOtherSizes) {
  const auto tier = Make(16 * kMiB, 4 * kMiB);
  std::vector<Extent> small;
  for (;;) {
    auto extent = tier->Reserve(16384);
    if (!extent.ok()) break;
    small.push_back(*extent);
  }
  EXPECT_EQ(tier->GetStats().used_bytes, 16 * kMiB);
  EXPECT_EQ(tier->GetHostStats().empty_segments, 0u);
  EXPECT_THAT(tier->Reserve(4 * kMiB),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("4194304")));
  for (const Extent& extent : small) tier->Release(extent);
  EXPECT_EQ(tier->GetHostStats().empty_segments, 4u);
  for (int i = 0; i < 4; ++i) EXPECT_OK(tier->Reserve(4 * kMiB));
}

TEST(HostTierTest, PrefaultTouchesAllPagesAndIsCounted) {
  const auto tier = Make(18 * kMiB, 4 * kMiB, /*prefault=*/true);
  tier->WaitForPrefault();
  EXPECT_EQ(tier->GetHostStats().prefaulted_bytes, 18 * kMiB);
  std::vector<unsigned char> present(4 * kMiB / 4096);
  const auto extent = tier->Reserve(4 * kMiB);
  ASSERT_OK(extent);
  ASSERT_EQ(mincore(tier->Map(*extent).data(), 4 * kMiB, present.data()), 0);
  for (unsigned char page : present) EXPECT_TRUE(page & 1);
}

TEST(HostTierTest, PrefaultStopsWithTheTier) {
  const auto most_resident_gib = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return static_cast<double>(use.ru_maxrss) / (1 << 20);
  };
  const double before = most_resident_gib();
  auto tier = HostTier::Create({.capacity_bytes = uint64_t{4} << 30});
  if (!tier.ok()) GTEST_SKIP() << ToString(tier.status());
  tier->reset();
  // To its end it takes seconds, in which it would touch all.
  EXPECT_LT(most_resident_gib() - before, 3);
}

TEST(HostTierTest, HugePagesAreOptional) {
  const auto tried = HostTier::Create({.capacity_bytes = 4 * kMiB,
                                       .huge_pages = HostTierOptions::HugePages::kTry,
                                       .prefault = false});
  ASSERT_OK(tried);
  const auto required = HostTier::Create({.capacity_bytes = 4 * kMiB,
                                          .huge_pages = HostTierOptions::HugePages::kRequire,
                                          .prefault = false});
  if ((*tried)->GetHostStats().huge_pages) {
    GTEST_SKIP() << "huge pages are reserved here: nothing to refuse";
  }
  EXPECT_THAT(required, StatusIs(StatusCode::kFailedPrecondition, HasSubstr("vm.nr_hugepages")));
  EXPECT_OK((*tried)->Reserve(1));
}

TEST(HostTierTest, MetadataOfALargeArenaIsNotTouchedBeforeUse) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
#endif
  const auto resident = [] {
    FILE* in = fopen("/proc/self/statm", "r");
    long size = 0, pages = 0;
    CAIRN_CHECK(fscanf(in, "%ld %ld", &size, &pages) == 2);
    fclose(in);
    return static_cast<uint64_t>(pages) * 4096;
  };
  const uint64_t before = resident();
  const auto tier = HostTier::Create(
      {.capacity_bytes = uint64_t{256} << 30, .prefault = false, .check_memory = false});
  ASSERT_OK(tier);
  EXPECT_LT(resident() - before, 8 * kMiB);
}

TEST(HostTierDeathTest, DoubleReleaseAndForeignExtentsAbort) {
  const auto tier = Make(4 * kMiB);
  const auto extent = tier->Reserve(10000);
  ASSERT_OK(extent);
  EXPECT_DEATH(tier->Release({extent->id + 4096, 5808}), "IsReserved");
  EXPECT_DEATH(tier->Release({extent->id + 1, 10000}), "check failed");
  EXPECT_DEATH(tier->Release({uint64_t{1} << 40, 10000}), "check failed");
  tier->Release(*extent);
  EXPECT_DEATH(tier->Release(*extent), "IsReserved");
}

}  // namespace
}  // namespace cairn::cache
