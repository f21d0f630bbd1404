// The tiers that need no storage library.

#include "services/cache/store/tier/host_tier.h"
#include "services/cache/store/tier/testing/fake_tier.h"
#include "tests/conformance/cache/tier/tier_conformance.h"

namespace cairn::cache::conformance {
namespace {

std::unique_ptr<Tier> MakeHost(uint64_t capacity, uint64_t segment, bool prefault) {
  auto tier = HostTier::Create(
      {.capacity_bytes = capacity, .segment_bytes = segment, .prefault = prefault});
  CAIRN_CHECK(tier.ok());
  return std::move(*tier);
}

INSTANTIATE_TEST_SUITE_P(
    Memory, TierConformance,
    ::testing::Values(TierCase{"HostOneSegment",
                               [](uint64_t capacity, const std::string&) {
                                 return MakeHost(capacity, 0, false);
                               }},
                      TierCase{"HostSmallSegmentsPrefaulting",
                               [](uint64_t capacity, const std::string&) {
                                 return MakeHost(capacity, 2 << 20, true);
                               }},
                      TierCase{"Fake",
                               [](uint64_t capacity, const std::string&) -> std::unique_ptr<Tier> {
                                 return std::make_unique<testing::FakeTier>(
                                     testing::FakeTierOptions{.capacity_bytes = capacity,
                                                              .max_extent_bytes = 2 << 20});
                               }}),
    [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::cache::conformance
