#include "services/cache/store/mover/evictor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

class EvictorTest : public ::testing::Test {
 protected:
  EvictorTest() {
    HostTierOptions options;
    options.capacity_bytes = 1 << 20;
    options.prefault = false;
    options.check_memory = false;
    host_ = std::move(HostTier::Create(options)).value();
    context_ =
        std::make_unique<NodeContext>(EngineOptions{}, Tiers(host_.get()), &clock_, &executor_);
  }
  NamespacePtr Open(std::string model) {
    NamespaceSpec spec;
    spec.model = std::move(model);
    spec.revision = "1";
    spec.numerics = "f32";
    spec.layout.form = OpaqueLayout{"x", 4096, 1};
    const auto stored = StoredNamespace::Of(spec);
    return context_->registry
        .Open(stored->fingerprint, stored->spec.tenant,
              [&](uint64_t generation) {
                return std::make_shared<NamespaceState>(stored, generation, EvictionKind::kLru,
                                                        context_->seed);
              })
        ->state;
  }
  void Store(const NamespacePtr& ns, uint8_t n, uint32_t used_at) {
    const auto extent = host_->Reserve(4096);
    ASSERT_OK(extent);
    BlockKey key;
    key.bytes[0] = n;
    NamespaceLock lock(*ns, context_->tiers);
    ns->index.Insert(key, std::nullopt, {PartPlace{ns->whole, {4096, 0}, {extent->id, 0}}},
                     TierKind::kHost, 0, used_at);
  }
  static uint64_t BlocksOf(const NamespacePtr& ns) { return ns->blocks.load(); }

  FakeClock clock_;
  InlineExecutor executor_;
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<NodeContext> context_;
};

TEST_F(EvictorTest, TakesTheLowestOfAllNamespaces) {
  const NamespacePtr a = Open("a"), b = Open("b");
  Store(a, 1, 20);
  Store(b, 2, 10);
  Evictor evictor(context_.get());
  EXPECT_TRUE(evictor.EvictOne(TierKind::kHost));
  EXPECT_EQ(BlocksOf(a), 1u);
  EXPECT_EQ(BlocksOf(b), 0u);
}

TEST_F(EvictorTest, TakesNothingThatRanksAsHighAsTheLimit) {
  const NamespacePtr ns = Open("a");
  Store(ns, 1, 20);
  Evictor evictor(context_.get());
  EXPECT_FALSE(evictor.EvictOne(TierKind::kHost, {.used_before = 20}));
  // A use since then counts, though the rank in the heap is an old one.
  {
    NamespaceLock lock(*ns, context_->tiers);
    BlockKey key;
    key.bytes[0] = 1;
    ns->index.Protect(*ns->index.Find(key), 30);
  }
  EXPECT_FALSE(evictor.EvictOne(TierKind::kHost, {.used_before = 25}));
  EXPECT_EQ(BlocksOf(ns), 1u);
  EXPECT_TRUE(evictor.EvictOne(TierKind::kHost, {.used_before = 31}));
}

// The list of namespaces may be older than a drop. The index of a dropped one belongs to the
// reclaimer, and an event of a block's leaving would follow the one that said that all has gone.
TEST_F(EvictorTest, LeavesADroppedNamespaceToTheReclaimer) {
  for (int round = 0; round < 200; ++round) {
    const NamespacePtr ns = Open(fmt::format("a{}", round));
    Store(ns, 1, 1);
    Evictor evictor(context_.get());
    std::atomic<bool> begun{false};
    bool evicted = true;
    std::thread other;
    {
      NamespaceLock lock(*ns, context_->tiers);
      other = std::thread([&] {
        begun = true;
        evicted = evictor.EvictOne(TierKind::kHost);
      });
      while (!begun) std::this_thread::yield();
      // Most times the other thread waits for the lock when these have passed, with an old list.
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
      context_->registry.Replace(ns, nullptr);
      ns->dropped.store(true);
    }
    other.join();
    ASSERT_FALSE(evicted) << "round " << round;
    ASSERT_EQ(BlocksOf(ns), 1u);
    NamespaceLock lock(*ns, context_->tiers);
    ns->index.Reclaim(10, &lock.released);
  }
}

}  // namespace
}  // namespace cairn::cache
