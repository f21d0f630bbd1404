// A lease keeps the blocks, and not their copies in host memory. So leases on blocks that are on
// disk stop nobody's stores, and what is read from where it lies stays there.

#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

constexpr uint64_t kArena = 32 << 20;
constexpr uint32_t kManyLayers = 30;

// Blocks of some `bytes`, in 30 layers.
NamespaceSpec LargeSpec(std::string tenant, uint64_t bytes) {
  NamespaceSpec spec = TestSpec();
  spec.tenant = std::move(tenant);
  spec.layout.block_tokens = 64;
  const auto dim = static_cast<uint32_t>(bytes / kManyLayers / kHeads / 64 / 2 / 2);
  spec.layout.form = NativeLayout{
      .groups = {{.count = kManyLayers,
                  .planes = {{"k", kHeads, dim, DType::kF16}, {"v", kHeads, dim, DType::kF16}}}},
      .kv_heads = kHeads};
  return spec;
}

class LeasePinsTest : public EngineTest {
 protected:
  void StartNode(const NamespaceSpec& spec, bool disk = true) {
    spec_ = spec;
    disk_ = std::make_unique<FakeTier>(
        FakeTier::Options{.capacity_bytes = 1 << 30, .max_extent_bytes = 8 << 20});
    StartWithoutDevice({.host_bytes = kArena, .disk = disk});
  }
  // Another tenant's blocks are stored and written to disk. How many of `count` were taken.
  int StoresOfAnother(uint64_t first, int count) {
    const NamespaceSpec mine = std::exchange(spec_, LargeSpec("other", 1 << 20));
    const Fingerprint my_ns = ns_;
    ns_ = engine_->OpenNamespace(spec_, false)->fingerprint;
    int taken = 0;
    for (int i = 0; i < count; ++i) {
      // Each is another prompt, some time after the one before.
      clock_.Advance(std::chrono::milliseconds(100));
      taken += Store(first + static_cast<uint64_t>(i), std::nullopt).ok() ? 1 : 0;
      Flush();
    }
    spec_ = mine;
    ns_ = my_ns;
    return taken;
  }
  LeaseId Lease(uint64_t first, uint64_t last) {
    const MatchResult match = Match(TestKeys(first, last));
    EXPECT_EQ(match.matched_blocks, last - first + 1);
    return *match.lease;
  }
  void Release(LeaseId lease) { ASSERT_OK(engine_->Release(session_, {&lease, 1})); }
  InPlaceEngine& in_place() { return *engine_->in_place(); }
};

// A prompt that is spilt: pushed in batches, leased as far as it is there, and longer than host.
TEST_F(LeasePinsTest, APromptLongerThanHostIsPushedUnderItsOwnLease) {
  StartNode(LargeSpec("reader", 1'475'000));
  std::optional<LeaseId> held;
  for (uint64_t batch = 0; batch < 6; ++batch) {
    for (uint64_t n = batch * 8 + 1; n <= batch * 8 + 8; ++n) {
      ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1))) << n;
    }
    Flush();
    const LeaseId lease = Lease(1, batch * 8 + 8);
    if (held) Release(*held);
    held = lease;
  }
  // All of it is there, in host or on disk.
  uint64_t slices = 0;
  on_slice_ = [&](const FetchedSlice& slice) {
    slices += IsSliceOf(1 + slice.block, slice);
    clock_.Advance(std::chrono::milliseconds(1));
  };
  EXPECT_TRUE(Fetch(*held).failures.empty());
  EXPECT_EQ(slices, 48 * kManyLayers);
  Release(*held);
}

TEST_F(LeasePinsTest, ALeaseOnMoreThanHostHoldsStopsNobodysStores) {
  StartNode(LargeSpec("reader", 1 << 20));
  for (uint64_t n = 1; n <= 64; ++n) {
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1))) << n;
    Flush();
  }
  EXPECT_EQ(StoresOfAnother(1'000, 40), 40);
  const LeaseId lease = Lease(1, 64);
  EXPECT_EQ(StoresOfAnother(2'000, 40), 40);
  // Whoever reads part of it, and then nothing for a while, stops nobody either.
  auto stream = engine_->Fetch({.session = session_, .lease = lease, .trace = ""});
  ASSERT_OK(stream);
  ASSERT_OK((*stream)->Next(clock_.Now()));
  EXPECT_EQ(StoresOfAnother(3'000, 40), 40);
  const Fetched rest = Drain(**stream);
  EXPECT_TRUE(rest.failures.empty());
  EXPECT_EQ(rest.slices.size(), 64 * kManyLayers - 1);
  for (const FetchedSlice& slice : rest.slices) EXPECT_GT(slice.slice_bytes, 0u);
  Release(lease);
  EXPECT_EQ(StoresOfAnother(4'000, 40), 40);
}

TEST_F(LeasePinsTest, WhatWasHandedOutStaysWhereItLies) {
  StartNode(LargeSpec("reader", 1 << 20));
  for (uint64_t n = 1; n <= 8; ++n) {
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1)));
  }
  Flush();
  const LeaseId lease = Lease(1, 8);
  keep_holds_ = true;
  const Fetched fetched = Fetch(lease);
  EXPECT_EQ(fetched.slices.size(), 8 * kManyLayers);
  Release(lease);
  EXPECT_EQ(StoresOfAnother(1'000, 60), 60);
  for (const FetchedSlice& slice : fetched.slices) {
    ASSERT_TRUE(IsSliceOf(1 + slice.block, slice)) << slice.block << " " << slice.layer;
  }
}

TEST_F(LeasePinsTest, ALeaseKeepsWhatIsNowhereElse) {
  StartNode(LargeSpec("reader", 1 << 20), /*disk=*/false);
  for (uint64_t n = 1; n <= 8; ++n) {
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1)));
  }
  const LeaseId lease = Lease(1, 8);
  clock_.Advance(std::chrono::seconds(1));
  spec_ = LargeSpec("other", 1 << 20);
  ns_ = engine_->OpenNamespace(spec_, false)->fingerprint;
  for (uint64_t n = 1'000; n < 1'060; ++n) ASSERT_OK(Store(n, std::nullopt)) << n;
  const Fetched fetched = Fetch(lease);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), 8 * kManyLayers);
  Release(lease);
}

TEST_F(LeasePinsTest, ALeaseInPlaceKeepsPlaces) {
  StartNode(LargeSpec("reader", 1 << 20));
  for (uint64_t n = 1; n <= 8; ++n) {
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1)));
  }
  Flush();
  const std::vector<BlockKey> keys = TestKeys(1, 8);
  std::vector<PlacedPart> before;
  const auto match = in_place().MatchInPlace(
      {.session = session_, .fingerprint = ns_, .keys = keys, .trace = ""}, SIZE_MAX, &before);
  ASSERT_OK(match);
  EXPECT_EQ(StoresOfAnother(1'000, 60), 60);
  std::vector<PlacedPart> after;
  ASSERT_OK(in_place().Locate({.session = session_, .lease = *match->lease}, &after));
  ASSERT_EQ(after.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(after[i].state, PlacedPart::State::kHost) << i;
    EXPECT_EQ(after[i].extent, before[i].extent) << i;
  }
  Release(*match->lease);
}

TEST_F(LeasePinsTest, ALeaseThatKeepsNoPlacesIsToldNone) {
  StartNode(LargeSpec("reader", 1 << 20));
  ASSERT_OK(Store(1, std::nullopt));
  const LeaseId lease = Lease(1, 1);
  std::vector<PlacedPart> places;
  EXPECT_THAT(in_place().Locate({.session = session_, .lease = lease}, &places),
              StatusIs(StatusCode::kNotFound, ::testing::HasSubstr("field 'lease_id'")));
  EXPECT_TRUE(places.empty());
  Release(lease);
}

// Two readers, each of more than host holds: neither pushes out what the other one was given.
TEST_F(LeasePinsTest, ReadersOfMoreThanHostHoldsDoNotPushEachOtherOut) {
  StartNode(LargeSpec("reader", 1 << 20));
  for (uint64_t n = 1; n <= 40; ++n) {
    ASSERT_OK(Store(n, n == 1 ? std::nullopt : std::optional(n - 1)));
    Flush();
  }
  for (uint64_t n = 101; n <= 140; ++n) {
    ASSERT_OK(Store(n, n == 101 ? std::nullopt : std::optional(n - 1)));
    Flush();
  }
  clock_.Advance(std::chrono::seconds(1));
  const LeaseId first = Lease(1, 40);
  clock_.Advance(std::chrono::seconds(1));
  const LeaseId second = Lease(101, 140);
  Fetch(first);
  Fetch(second);
  const uint64_t promoted = engine_->GetStats().promoted_blocks;
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(std::chrono::milliseconds(500));
    EXPECT_TRUE(Fetch(first).failures.empty());
    EXPECT_TRUE(Fetch(second).failures.empty());
  }
  EXPECT_LE(engine_->GetStats().promoted_blocks - promoted, 4u);
  Release(first);
  Release(second);
}

}  // namespace
}  // namespace cairn::cache::testing
