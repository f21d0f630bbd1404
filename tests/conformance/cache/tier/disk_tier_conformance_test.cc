// The disk tier: the common suite, and what survives a restart.

#include "services/cache/store/tier/disk/disk_tier.h"
#include "tests/conformance/cache/tier/tier_conformance.h"

namespace cairn::cache::conformance {
namespace {

std::unique_ptr<Tier> MakeDisk(uint64_t capacity, const std::string& directory, bool direct,
                               const std::string& backend) {
  auto tier = DiskTier::Open({.directory = directory,
                              .capacity_bytes = capacity,
                              .direct_io = direct,
                              .io_backend = backend,
                              .min_free_bytes = 0});
  if (!tier.ok()) {
    ADD_FAILURE() << ToString(tier.status());
    return nullptr;
  }
  return std::move(*tier);
}

TierCase DiskCase(const std::string& name, bool direct, const std::string& backend) {
  return {name, [direct, backend](uint64_t capacity, const std::string& directory) {
            return MakeDisk(capacity, directory, direct, backend);
          }};
}

INSTANTIATE_TEST_SUITE_P(Disk, TierConformance,
                         ::testing::Values(DiskCase("Direct", true, "auto"),
                                           DiskCase("Buffered", false, "auto"),
                                           DiskCase("AioDirect", true, "aio"),
                                           DiskCase("ThreadsDirect", true, "threads"),
                                           DiskCase("ThreadsBuffered", false, "threads")),
                         [](const auto& c) { return c.param.name; });

// The same object of the suite, opened again.
class DiskRestart : public TierConformance {};

TEST_P(DiskRestart, FindsEverythingAgain) {
  std::vector<Extent> extents;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    extents.push_back(Put(seed, static_cast<uint32_t>(1 + seed * 10007)));
  }
  tier_->Release(extents[3]);
  ASSERT_OK(persistent_->PutMeta("name", "value"));
  const uint64_t used = tier_->GetStats().used_bytes;
  Make();
  ASSERT_EQ(found_.size(), 19u);
  for (const auto& [extent, record] : found_) {
    const uint64_t seed = std::stoull(record.substr(7));
    EXPECT_NE(seed, 3u);
    EXPECT_EQ(extent, extents[seed]);
    ExpectBytes(seed, extent);
  }
  EXPECT_EQ(tier_->GetStats().used_bytes, used);
  int metas = 0;
  ASSERT_OK(persistent_->ListMeta([&](std::string_view, std::string_view) { ++metas; }));
  EXPECT_EQ(metas, 1);
}

TEST_P(DiskRestart, IdsNeverComeTwice) {
  std::set<uint64_t> ids;
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(ids.insert(Put(i, 1000).id).second);
    EXPECT_TRUE(ids.insert(tier_->Reserve(10)->id).second);
    Make();
  }
}

TEST_P(DiskRestart, UnwantedExtentsAreReleased) {
  for (uint64_t seed = 0; seed < 5; ++seed) Put(seed, 5000);
  refuse_ = true;
  Make();
  EXPECT_EQ(tier_->GetStats().used_bytes, 0u);
  refuse_ = false;
  Make();
  EXPECT_TRUE(found_.empty());
}

TEST_P(DiskRestart, ReservedExtentsAreGone) {
  Put(1, 1000);
  ASSERT_OK(tier_->Reserve(2000));
  Make();
  EXPECT_EQ(found_.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Disk, DiskRestart,
                         ::testing::Values(DiskCase("Direct", true, "auto"),
                                           DiskCase("Buffered", false, "auto")),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::cache::conformance
