#include "services/cache/store/engine/snapshot.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>

#include "common/status/matchers.h"
#include "services/cache/store/state/event_hub.h"

namespace cairn::cache {
namespace {

using Kind = CacheEvent::Kind;

BlockKey Key(uint64_t n) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &n, sizeof(n));
  return key;
}

NamespaceSpec Spec(const std::string& model) {
  NamespaceSpec spec;
  spec.revision = "1";
  spec.numerics = "f32";
  spec.model = model;
  spec.layout.form = OpaqueLayout{"x", 100, 1};
  return spec;
}

class SnapshotTest : public ::testing::Test {
 protected:
  NamespacePtr Open(const std::string& model) {
    const NamespaceSpec spec = Spec(model);
    const auto opened = registry_.Open(Fingerprint(spec), spec.tenant, [&](uint64_t generation) {
      return std::make_shared<NamespaceState>(StoredNamespace::Of(spec), generation,
                                              EvictionKind::kLru, 1);
    });
    EXPECT_OK(opened);
    return opened->state;
  }
  static Digest Fingerprint(const NamespaceSpec& spec) { return cairn::Fingerprint(spec); }

  // As the engine does: the change and its event under one lock.
  void Store(const NamespacePtr& ns, uint64_t n, std::optional<uint64_t> parent) {
    NamespaceLock lock(*ns, tiers_);
    const auto above = parent ? std::optional(Key(*parent)) : std::nullopt;
    if (!ns->index.Insert(Key(n), above, {PartPlace{ns->whole, {1, 0}, {1, 0}}}, TierKind::kHost, 0,
                          1))
      return;
    here_.insert({ns->fingerprint, Key(n)});
    Publish(*ns, Kind::kStored, n);
  }
  void Remove(const NamespacePtr& ns, uint64_t n) {
    NamespaceLock lock(*ns, tiers_);
    const auto ref = ns->index.FindAlive(Key(n));
    if (!ref) return;
    ns->index.RemoveFromTier(*ref, TierKind::kHost, &lock.released);
    lock.released.clear();  // There is no tier behind it.
    here_.erase({ns->fingerprint, Key(n)});
    Publish(*ns, Kind::kRemoved, n);
  }
  void Publish(const NamespaceState& ns, Kind kind, uint64_t n) {
    CacheEvent event;
    event.kind = kind;
    event.fingerprint = ns.fingerprint;
    event.key = Key(n);
    hub_.Publish(event, ns.spec.tenant);
  }
  std::unique_ptr<EventQueue> Watch(const std::optional<Digest>& fingerprint = std::nullopt) {
    const EventFilter filter{.fingerprint = fingerprint};
    auto snapshot = std::make_shared<Snapshot>(&tiers_, registry_, filter);
    return hub_.Subscribe(
        filter, [snapshot](std::vector<CacheEvent>* events) { return snapshot->NextPage(events); });
  }
  std::vector<CacheEvent> Next(EventQueue& queue, size_t max) {
    auto events = queue.Next(max, TimePoint());
    EXPECT_OK(events);
    return events.ok() ? *std::move(events) : std::vector<CacheEvent>();
  }

  using Blocks = std::set<std::pair<Digest, BlockKey>>;
  static void Apply(const CacheEvent& event, Blocks* blocks) {
    if (event.kind == Kind::kStored) blocks->insert({event.fingerprint, event.key});
    if (event.kind == Kind::kRemoved) blocks->erase({event.fingerprint, event.key});
  }

  Tiers tiers_;
  NamespaceRegistry registry_{16};
  FakeClock clock_;
  MemoryAccount memory_{MemoryAccount::Unbounded()};
  EventHub hub_{1 << 20, /*node_epoch=*/7, clock_, &memory_};
  Blocks here_;
};

TEST_F(SnapshotTest, TellsEachBlockOnceInPagesOfBoundedSize) {
  const NamespacePtr a = Open("a"), b = Open("b");
  for (uint64_t n = 0; n < 20'000; ++n) Store(a, n, n == 0 ? std::nullopt : std::optional(n - 1));
  Store(b, 7, std::nullopt);
  Snapshot snapshot(&tiers_, registry_, EventFilter{});
  Blocks told;
  std::vector<CacheEvent> page;
  while (snapshot.NextPage(&page)) {
    EXPECT_LT(page.size(), 2 * Snapshot::kPageBlocks);
    for (const CacheEvent& event : page)
      EXPECT_TRUE(told.insert({event.fingerprint, event.key}).second);
    page.clear();
  }
  EXPECT_EQ(told, here_);
}

// A member that knew of one tier alone told others that a block was gone when it left that one.
TEST_F(SnapshotTest, TellsEachTierThatABlockLiesIn) {
  const NamespacePtr ns = Open("a");
  Store(ns, 1, std::nullopt);
  {
    NamespaceLock lock(*ns, tiers_);
    const Extent extent{1, 0};
    ns->index.AddToTier(*ns->index.FindAlive(Key(1)), TierKind::kDisk, {&extent, 1});
  }
  Snapshot snapshot(&tiers_, registry_, EventFilter{});
  std::vector<CacheEvent> told;
  while (snapshot.NextPage(&told)) {
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].kind, Kind::kStored);
  EXPECT_EQ(told[0].tier, TierKind::kHost);
  EXPECT_EQ(told[1].kind, Kind::kTierAdded);
  EXPECT_EQ(told[1].tier, TierKind::kDisk);
  EXPECT_EQ(told[1].key, Key(1));
}

TEST_F(SnapshotTest, WithWhatHappensMeanwhileItIsWhatTheNodeHas) {
  const NamespacePtr ns = Open("a");
  std::mt19937_64 rng(1);
  const auto change = [&] {
    const uint64_t n = rng() % 6000;
    // Parents are any block: nodes split, merge and are linked later.
    if (rng() % 3 != 0) {
      Store(ns, n, rng() % 8 == 0 ? rng() % 6000 : n == 0 ? 1 : n - 1);
    } else {
      Remove(ns, n);
    }
  };
  for (int i = 0; i < 9000; ++i) change();
  auto queue = Watch();
  Blocks told;
  bool ended = false;
  uint64_t sequence = 0;
  for (int i = 0; i < 1000; ++i) {
    for (const CacheEvent& event : Next(*queue, 100)) {
      Apply(event, &told);
      if (sequence == 0) sequence = event.sequence;
      if (ended) ++sequence;
      EXPECT_EQ(event.sequence, sequence);
      EXPECT_EQ(event.node_epoch, 7u);
      ended |= event.kind == Kind::kSnapshotEnd;
    }
    if (!ended) {
      for (int c = 0; c < 50; ++c) change();
    }
  }
  EXPECT_TRUE(ended);
  EXPECT_TRUE(told == here_) << told.size() << " told, " << here_.size() << " here";
}

TEST_F(SnapshotTest, OfOneNamespaceTellsNothingOfOthers) {
  const NamespacePtr a = Open("a"), b = Open("b");
  Store(a, 1, std::nullopt);
  Store(b, 2, std::nullopt);
  auto queue = Watch(a->fingerprint);
  Store(a, 3, std::nullopt);
  Store(b, 4, std::nullopt);
  // Block 3 is in the page, which is made now, and was announced too.
  std::vector<std::pair<Kind, BlockKey>> told;
  for (const CacheEvent& event : Next(*queue, 10)) told.emplace_back(event.kind, event.key);
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[2].first, Kind::kSnapshotEnd);
  const auto live = Next(*queue, 10);
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].key, Key(3));
}

TEST_F(SnapshotTest, ADroppedNamespaceIsLeftOut) {
  const NamespacePtr ns = Open("a");
  Store(ns, 1, std::nullopt);
  auto queue = Watch();
  {
    NamespaceLock lock(*ns, tiers_);
    ns->dropped.store(true);
  }
  const auto events = Next(*queue, 10);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kSnapshotEnd);
}

// Opens race with each other and with drops: no generation is ever used twice, or records of the
// dropped one would be taken for those of the new one after a restart.
TEST(NamespaceRegistryTest, EachOpenedNamespaceHasAGenerationOfItsOwn) {
  const auto stored = StoredNamespace::Of(Spec("a"));
  const Digest& fingerprint = stored->fingerprint;
  NamespaceRegistry registry(4);
  Mutex mu;
  std::multiset<uint64_t> generations;
  std::atomic<bool> stop{false};
  const auto open = [&] {
    while (!stop) {
      const auto opened = registry.Open(fingerprint, stored->spec.tenant, [&](uint64_t generation) {
        MutexLock lock(mu);
        generations.insert(generation);
        return std::make_shared<NamespaceState>(stored, generation, EvictionKind::kLru, 1);
      });
      EXPECT_OK(opened);
      std::this_thread::yield();
    }
  };
  std::thread first(open), second(open);
  for (int drops = 0; drops < 300;) {
    const NamespacePtr ns = registry.Find(fingerprint);
    if (ns == nullptr) {
      std::this_thread::yield();
      continue;
    }
    registry.RememberGeneration(fingerprint, ns->generation + 1);
    drops += registry.Replace(ns, nullptr);
  }
  stop = true;
  first.join();
  second.join();
  for (const uint64_t generation : generations) EXPECT_EQ(generations.count(generation), 1u);
}

}  // namespace
}  // namespace cairn::cache
