// Tenants that share the host tier: what a store of one costs the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

constexpr uint64_t kSegment = 2 << 20;
constexpr uint64_t kSegments = 64;

OwnerId Owner(HostTier& tier, std::string_view name) { return *tier.AddOwner(name); }

// An arena of 64 segments, some hundred blocks in each.
class FairEvictionTest : public EngineTest {
 protected:
  struct Tenant {
    OwnerId owner = kCommon;
    Fingerprint ns;
    uint64_t stored = 0;  // Blocks first + 0 .. first + stored - 1 were stored.
    uint64_t first = 0;
  };

  void StartArena(bool disk = false, uint64_t segments = kSegments) {
    Options options;
    options.host_bytes = segments * kSegment;
    options.segment_bytes = kSegment;
    options.disk = disk;
    StartWithoutDevice(options);
  }
  Tenant Add(const std::string& name, bool owner = true) {
    Tenant tenant;
    NamespaceSpec spec = spec_;
    spec.tenant = name;
    const auto opened = engine_->OpenNamespace(spec, false);
    EXPECT_OK(opened);
    tenant.ns = opened->fingerprint;
    tenant.first = next_first_ += 1'000'000;
    if (owner) tenant.owner = Owner(*host_, name);
    return tenant;
  }
  // One block without a parent, so that any block may be evicted alone.
  Status StoreOne(Tenant& tenant) {
    ns_ = tenant.ns;
    const Status status = Store(tenant.first + tenant.stored, std::nullopt);
    if (status.ok()) ++tenant.stored;
    return status;
  }
  // Until the tier is full: the first eviction ends it.
  void Fill(Tenant& tenant) {
    const uint64_t before = Evicted();
    while (Evicted() == before) {
      ASSERT_OK(StoreOne(tenant));
      clock_.Advance(std::chrono::milliseconds(20));
    }
  }
  // Recency and place are unrelated afterwards.
  void Shuffle(const Tenant& tenant, uint32_t seed = 1) {
    std::vector<uint64_t> order(tenant.stored);
    for (uint64_t i = 0; i < order.size(); ++i) order[i] = tenant.first + i;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    ns_ = tenant.ns;
    for (const uint64_t n : order) {
      clock_.Advance(std::chrono::milliseconds(20));
      const MatchResult match = Match({TestKey(n)});
      if (!match.lease) continue;
      ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
    }
  }
  // As a process on this machine does: the block stays where it lies.
  std::optional<LeaseId> LeaseInPlace(uint64_t n, std::vector<PlacedPart>* places) {
    const BlockKey key = TestKey(n);
    const auto match = engine_->in_place()->MatchInPlace(
        {.session = session_, .fingerprint = ns_, .keys = {&key, 1}, .trace = ""}, SIZE_MAX,
        places);
    EXPECT_OK(match);
    return match.ok() ? match->lease : std::nullopt;
  }
  std::vector<LeaseId> LeaseEach(const Tenant& tenant, uint64_t step) {
    std::vector<LeaseId> leases;
    std::vector<PlacedPart> places;
    ns_ = tenant.ns;
    for (uint64_t i = 0; i < tenant.stored; i += step) {
      const auto lease = LeaseInPlace(tenant.first + i, &places);
      if (lease) leases.push_back(*lease);
    }
    return leases;
  }
  uint64_t Held(const Tenant& tenant) {
    ns_ = tenant.ns;
    uint64_t held = 0;
    for (uint64_t i = 0; i < tenant.stored; ++i) {
      const BlockKey key = TestKey(tenant.first + i);
      held += (*engine_->Exists(ns_, {&key, 1}))[0].has_value();
    }
    return held;
  }
  // Every block that is still there has the bytes that were stored. Blocks that would have to come
  // from disk are left out if nothing runs by itself.
  void Verify(const Tenant& tenant) {
    ns_ = tenant.ns;
    for (uint64_t i = 0; i < tenant.stored; ++i) {
      const BlockKey key = TestKey(tenant.first + i);
      const std::optional<TierKind> found = (*engine_->Exists(ns_, {&key, 1}))[0];
      if (!found || (executor_ != &inline_ && *found != TierKind::kHost)) continue;
      ASSERT_EQ(ServeAndVerify(tenant.first + i, tenant.first + i), 1u) << i;
    }
  }
  // Before an executor of the test goes.
  void End() {
    engine_->CloseSession(session_);
    engine_.reset();
  }
  uint64_t Evicted() { return engine_->GetStats().tiers[TierKind::kHost]->evicted_bytes; }
  uint64_t UsedBytes() { return host_->GetStats().used_bytes; }

  uint64_t next_first_ = 0;
};

TEST_F(FairEvictionTest, ASecondTenantsFirstBlockEvictsAtMostTwoSegments) {
  StartArena();
  Tenant a = Add("a");
  Fill(a);
  Shuffle(a);
  const uint64_t before = Evicted(), held = Held(a);
  Tenant b = Add("b");
  ASSERT_OK(StoreOne(b));
  RecordProperty("evicted_bytes", static_cast<int>(Evicted() - before));
  EXPECT_LE(Evicted() - before, 2 * kSegment);
  EXPECT_GE(Held(a) + 2 * (kSegment / 16384), held);
  EXPECT_EQ(Held(b), 1u);
}

// The blocks that are worth most stay, although they lay in the segment that was given away.
TEST_F(FairEvictionTest, WhatIsGivenUpIsWhatWasUsedLeast) {
  StartArena(false, 16);
  Tenant a = Add("a");
  Fill(a);
  Shuffle(a);
  // The most recent half.
  std::vector<uint64_t> recent;
  ns_ = a.ns;
  for (uint64_t i = 0; i < a.stored; i += 2) {
    const BlockKey key = TestKey(a.first + i);
    if (!(*engine_->Exists(ns_, {&key, 1}))[0]) continue;
    clock_.Advance(std::chrono::milliseconds(20));
    const MatchResult match = Match({key});
    ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
    recent.push_back(a.first + i);
  }
  Tenant b = Add("b");
  ASSERT_OK(StoreOne(b));
  ns_ = a.ns;
  for (const uint64_t n : recent) {
    const BlockKey key = TestKey(n);
    EXPECT_TRUE((*engine_->Exists(ns_, {&key, 1}))[0].has_value()) << n;
  }
  Verify(a);
}

TEST_F(FairEvictionTest, TheNewcomersShareGrowsByItsOwnUse) {
  StartArena(false, 16);
  Tenant a = Add("a");
  Fill(a);
  Shuffle(a);
  Tenant b = Add("b");
  const uint64_t part = Part(1, std::nullopt).bytes;
  uint64_t worst = 0;
  const uint64_t start = Evicted();
  for (int i = 0; i < 1200; ++i) {
    const uint64_t before = Evicted();
    ASSERT_OK(StoreOne(b)) << i;
    worst = std::max(worst, Evicted() - before);
    clock_.Advance(std::chrono::milliseconds(20));
  }
  EXPECT_LE(worst, 2 * kSegment + 2 * part);
  // All together, what was evicted is of the order of what was stored.
  EXPECT_LE(Evicted() - start, 2 * 1200 * part + 2 * kSegment);
  EXPECT_EQ(host_->SegmentsOf(a.owner).size(), 8u);
  EXPECT_EQ(host_->SegmentsOf(b.owner).size(), 8u);
  Verify(a);
  Verify(b);
}

// No segment can be emptied: nothing may be thrown away in trying.
TEST_F(FairEvictionTest, ALeaseInEachSegmentCostsNobodyAnything) {
  StartArena(false, 16);
  Tenant a = Add("a");
  Fill(a);
  Shuffle(a);
  const std::vector<LeaseId> leases = LeaseEach(a, 20);
  const uint64_t before = Evicted(), held = Held(a);
  Tenant b = Add("b");
  for (int i = 0; i < 10; ++i) {
    (void)StoreOne(b);
    clock_.Advance(std::chrono::seconds(2));
  }
  EXPECT_LE(Evicted() - before, 2 * kSegment);
  EXPECT_GE(Held(a) + 2 * (kSegment / 16384), held);
  // a can use all of its segments.
  ASSERT_OK(StoreOne(a));
  ASSERT_OK(engine_->Release(session_, leases));
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_OK(StoreOne(b));
  EXPECT_LE(Evicted() - before, 4 * kSegment);
  Verify(a);
}

// One lease in all segments but one: that one is found.
TEST_F(FairEvictionTest, TheSegmentWithoutPinsIsTheOneThatGoes) {
  StartArena(false, 16);
  Tenant a = Add("a");
  Fill(a);
  ns_ = a.ns;
  std::vector<LeaseId> leases;
  uint32_t spared = UINT32_MAX;
  for (uint64_t i = 0; i < a.stored; ++i) {
    std::vector<PlacedPart> places;
    const std::optional<LeaseId> lease = LeaseInPlace(a.first + i, &places);
    if (!lease) continue;
    const uint32_t index = host_->PlaceOf(places[0].extent).index;
    if (spared == UINT32_MAX) spared = index;
    if (index != spared && i % 10 == 0) {
      leases.push_back(*lease);
    } else {
      ASSERT_OK(engine_->Release(session_, {&*lease, 1}));
    }
  }
  const uint64_t before = Evicted();
  Tenant b = Add("b");
  ASSERT_OK(StoreOne(b));
  EXPECT_LE(Evicted() - before, 2 * kSegment);
  ASSERT_OK(engine_->Release(session_, leases));
}

// Blocks that wait for their copy to disk are never evicted, but they can be moved.
TEST_F(FairEvictionTest, BlocksThatWaitForTheirCopyAreMoved) {
  ManualExecutor later;
  executor_ = &later;
  StartArena(/*disk=*/true, 16);
  Tenant a = Add("a");
  Fill(a);
  later.RunAll();
  Shuffle(a);
  // One of twelve, in any segment.
  const uint64_t first_dirty = a.stored;
  for (uint64_t i = 0; i < first_dirty / 12; ++i) {
    ASSERT_OK(StoreOne(a));
    clock_.Advance(std::chrono::milliseconds(20));
  }
  const uint64_t before = Evicted();
  Tenant b = Add("b");
  ASSERT_OK(StoreOne(b));
  EXPECT_LE(Evicted() - before, 2 * kSegment);
  ns_ = a.ns;
  for (uint64_t i = first_dirty; i < a.stored; ++i) {
    const BlockKey key = TestKey(a.first + i);
    EXPECT_EQ((*engine_->Exists(ns_, {&key, 1}))[0], TierKind::kHost) << i;
  }
  later.RunAll();
  Verify(a);
  Verify(b);
  later.RunAll();
  End();
}

// Small blocks of another tenant, of which every second one may go: none of the holes is large
// enough.
TEST_F(FairEvictionTest, HolesOfSmallBlocksKeepNobodyFromStoringLargeOnes) {
  StartArena(/*disk=*/false, 4);
  Tenant large = Add("large", /*owner=*/false);
  for (int i = 0; i < 20; ++i) ASSERT_OK(StoreOne(large));
  NamespaceSpec small = spec_;
  small.tenant = "small";
  small.layout.form = OpaqueLayout{"small", 1024, 1};
  ns_ = engine_->OpenNamespace(small, false)->fingerprint;
  const std::vector<uint64_t> lengths = {100};
  std::vector<std::byte> bytes(format::PartBytes(lengths));
  format::SealPart(bytes, format::Codec::kOpaque, small.layout.WholeRect(),
                   static_cast<uint16_t>(small.layout.block_tokens), lengths);
  const auto store_small = [&](uint64_t n, std::optional<uint64_t> parent) {
    ReservePartRequest part;
    part.key = TestKey(n);
    if (parent) part.parent = TestKey(*parent);
    part.part = small.layout.WholeRect();
    part.bytes = bytes.size();
    const auto id = Reserve(part);
    ASSERT_OK(id);
    ASSERT_OK(engine_->Write(session_, *id, 0, bytes));
    ASSERT_OK(CommitOne(*id));
  };
  std::vector<BlockKey> roots;
  for (uint64_t n = 1; Evicted() == 0; n += 2) {
    store_small(n, std::nullopt);
    store_small(n + 1, n);
    roots.push_back(TestKey(n));
  }
  // Their leases keep the roots.
  for (const BlockKey& root : roots) (void)Match({root});
  ASSERT_GT(roots.size(), 500u);
  clock_.Advance(std::chrono::seconds(10));
  Shuffle(large);  // The small ones go first.
  for (int i = 0; i < 10; ++i) ASSERT_OK(StoreOne(large)) << i;
}

// On a node with an executor, the segment is emptied there: the newcomer's own blocks make room
// until it has the segment.
TEST_F(FairEvictionTest, WhoHasRoomAlreadyDoesNotWaitForMore) {
  ManualExecutor later;
  executor_ = &later;
  StartArena(false, 16);
  Tenant a = Add("a");
  Fill(a);
  Shuffle(a);
  Tenant b = Add("b");
  ASSERT_OK(StoreOne(b));
  ASSERT_EQ(host_->SegmentsOf(b.owner).size(), 1u);
  later.RunAll();
  const uint64_t part = Part(1, std::nullopt).bytes;
  for (int i = 0; i < 250; ++i) {
    const uint64_t before = Evicted();
    ASSERT_OK(StoreOne(b));
    ASSERT_LE(Evicted() - before, part) << i;
  }
  EXPECT_EQ(host_->SegmentsOf(b.owner).size(), 1u);
  later.RunAll();
  ASSERT_OK(StoreOne(b));
  EXPECT_EQ(host_->SegmentsOf(b.owner).size(), 2u);
  End();
}

// Blocks that a tenant stored before its first session on this machine lie among the common ones.
// Those who have no other place make room there although its lowest block may lie elsewhere, and
// although no segment can be emptied, since something is held in each.
TEST_F(FairEvictionTest, WhoHasNoSegmentsTakesThePlaceOfGuestsAmongTheCommonOnes) {
  StartArena(false, 16);
  Tenant guest = Add("guest", /*owner=*/false);
  Fill(guest);
  Shuffle(guest);
  const std::vector<LeaseId> held = LeaseEach(guest, 40);
  guest.owner = Owner(*host_, "guest");
  Tenant other = Add("other", /*owner=*/false);
  for (int i = 0; i < 300; ++i) {
    const uint64_t before = Evicted();
    ASSERT_OK(StoreOne(other)) << i;
    ASSERT_LE(Evicted() - before, 2 * Part(1, std::nullopt).bytes) << i;
    clock_.Advance(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(Held(other), 300u);
  Verify(guest);
  Verify(other);
}

// The guests are older, but not all of them: what was not used for the longest time goes first,
// whosever it is.
TEST_F(FairEvictionTest, GuestsGoInTheOrderOfTheirLastUse) {
  StartArena(false, 16);
  Tenant other = Add("other", /*owner=*/false);
  Tenant guest = Add("guest", /*owner=*/false);
  for (int i = 0; i < 300; ++i) {
    ASSERT_OK(StoreOne(other));
    clock_.Advance(std::chrono::milliseconds(20));
  }
  Fill(guest);
  guest.owner = Owner(*host_, "guest");
  const uint64_t guests = Held(guest);
  ns_ = other.ns;
  for (int i = 0; i < 200; ++i) ASSERT_OK(StoreOne(other));
  EXPECT_EQ(Held(guest), guests);
  // The older blocks of its own are gone now.
  for (int i = 0; i < 300; ++i) {
    clock_.Advance(std::chrono::milliseconds(20));
    ASSERT_OK(StoreOne(other));
  }
  EXPECT_LT(Held(guest), guests);
  Verify(guest);
  Verify(other);
}

// A part as large as a segment, where every hole is small and recency says nothing about place.
TEST_F(FairEvictionTest, ALargePartCostsOneSegmentNotTheTier) {
  StartArena(false, 16);
  Tenant a = Add("a", /*owner=*/false);
  Fill(a);
  Shuffle(a);
  NamespaceSpec spec = spec_;
  spec.tenant = "large";
  for (Plane& plane : std::get<NativeLayout>(spec.layout.form).groups[0].planes) plane.dim *= 96;
  const auto large = engine_->OpenNamespace(spec, false);
  ASSERT_OK(large);
  ReservePartRequest request;
  request.key = TestKey(77);
  request.part = spec.layout.WholeRect();
  request.bytes = TestPart(spec.layout, 1, request.part).size();
  const uint64_t before = Evicted();
  const auto ids = engine_->Reserve(session_, large->fingerprint, {&request, 1}, Duration(0));
  ASSERT_OK(ids);
  ASSERT_OK((*ids)[0]);
  EXPECT_LE(Evicted() - before, 2 * request.bytes + 2 * kSegment + 20000);
  Verify(a);
}

// A prompt whose blocks share their time of use: the end of a path goes first, so that what is left
// can still be matched.
TEST_F(FairEvictionTest, PathsLoseTheirEnds) {
  StartArena(false, 16);
  Tenant a = Add("a");
  ns_ = a.ns;
  constexpr uint64_t kPaths = 60, kDepth = 25;
  const uint64_t first = a.first + 500'000;
  for (uint64_t d = 0; d < kDepth; ++d) {
    for (uint64_t p = 0; p < kPaths; ++p) {
      const uint64_t n = first + p * 1000 + d;
      ASSERT_OK(Store(n, d == 0 ? std::nullopt : std::optional(n - 1)));
    }
  }
  while (Evicted() == 0) ASSERT_OK(StoreOne(a));
  Tenant b = Add("b");
  ASSERT_OK(StoreOne(b));
  ns_ = a.ns;
  uint64_t matched = 0, there = 0;
  for (uint64_t p = 0; p < kPaths; ++p) {
    const std::vector<BlockKey> keys = TestKeys(first + p * 1000, first + p * 1000 + kDepth - 1);
    matched += Match(keys, /*lease=*/false).matched_blocks;
    const auto found = *engine_->Exists(ns_, keys);
    there += static_cast<uint64_t>(std::count_if(
        found.begin(), found.end(), [](const auto& tier) { return tier.has_value(); }));
  }
  EXPECT_EQ(matched, there);
}

// Random tenants, some without readers on this machine, random sizes and leases. Each store evicts
// a bounded number of bytes, and every block that is there has the right bytes.
TEST_F(FairEvictionTest, EachStoreEvictsABoundedNumberOfBytes) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    StartArena(seed == 2, 12);
    std::mt19937 random(seed);
    std::vector<Tenant> tenants = {Add("a"), Add("b"), Add("c"), Add("d", false)};
    const uint64_t part = Part(1, std::nullopt).bytes;
    std::vector<LeaseId> leases;
    uint64_t worst = 0, stored = 0, refused = 0;
    for (int step = 0; step < 6000; ++step) {
      clock_.Advance(std::chrono::milliseconds(20));
      // Bursts of one tenant, so that shares move.
      Tenant& tenant = tenants[(static_cast<size_t>(step) / 700 + random() % 4 / 3) % 4];
      const uint32_t dice = random() % 10;
      if (dice < 7) {
        const uint64_t before = Evicted();
        const Status status = StoreOne(tenant);
        (status.ok() ? stored : refused) += 1;
        worst = std::max(worst, Evicted() - before);
      } else if (tenant.stored > 0) {
        ns_ = tenant.ns;
        const MatchResult match = Match({TestKey(tenant.first + random() % tenant.stored)});
        if (match.lease) leases.push_back(*match.lease);
      }
      while (leases.size() > 20) {
        const size_t at = random() % leases.size();
        ASSERT_OK(engine_->Release(session_, {&leases[at], 1}));
        leases.erase(leases.begin() + static_cast<ptrdiff_t>(at));
      }
    }
    EXPECT_LE(worst, 4 * kSegment + 4 * part) << "seed " << seed;
    EXPECT_GT(stored, 8 * refused) << "seed " << seed;
    RecordProperty("worst", static_cast<int>(worst));
    ASSERT_OK(engine_->Release(session_, leases));
    for (const Tenant& tenant : tenants) Verify(tenant);
    uint64_t bytes = 0;
    for (const auto& info : engine_->ListNamespaces("")) bytes += info.bytes;
    if (seed != 2) {
      EXPECT_EQ(UsedBytes(), bytes / part * ((part + 4095) / 4096 * 4096));
    }
    engine_->CloseSession(session_);
    engine_.reset();
    host_.reset();
    disk_.reset();
  }
}

}  // namespace
}  // namespace cairn::cache::testing
