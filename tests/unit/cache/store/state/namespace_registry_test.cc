#include "services/cache/store/state/namespace_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

class NamespaceRegistryTest : public ::testing::Test {
 protected:
  NamespacePtr Make(std::string model, uint64_t generation) {
    NamespaceSpec spec;
    spec.model = std::move(model);
    spec.revision = "1";
    spec.numerics = "f32";
    spec.layout.form = OpaqueLayout{"x", 4096, 1};
    return std::make_shared<NamespaceState>(StoredNamespace::Of(spec), generation,
                                            EvictionKind::kLru, 1);
  }
  NamespacePtr Open(const std::string& model) {
    const NamespacePtr made = Make(model, 1);
    return registry_
        .Open(made->fingerprint, made->spec.tenant, [&](uint64_t /*generation*/) { return made; })
        ->state;
  }
  void Insert(NamespaceState& ns, uint8_t n) {
    BlockKey key;
    key.bytes[0] = n;
    NamespaceLock lock(ns, tiers_);
    ns.index.Insert(key, std::nullopt, {PartPlace{ns.whole, {4096, 0}, {n, 0}}}, TierKind::kHost, 0,
                    0);
  }
  void Drop(NamespaceState& ns) {
    NamespaceLock lock(ns, tiers_);
    ns.dropped.store(true);
  }
  // The sum that a walk over all namespaces finds.
  uint64_t Walked() const {
    uint64_t bytes = 0;
    for (const NamespacePtr& ns : *registry_.All()) bytes += ns->memory_bytes.load();
    return bytes;
  }

  Tiers tiers_{nullptr};
  NamespaceRegistry registry_{100};
};

TEST_F(NamespaceRegistryTest, TheMemoryOfAllIsASumThatGoesAlong) {
  EXPECT_EQ(registry_.IndexBytes(), 0u);
  NamespacePtr a = Open("a");
  const NamespacePtr b = Open("b");
  for (uint8_t n = 1; n <= 200; ++n) Insert(n % 3 == 0 ? *a : *b, n);
  EXPECT_GT(registry_.IndexBytes(), 0u);
  EXPECT_EQ(registry_.IndexBytes(), Walked());

  // A dropped namespace leaves the sum, and the one that takes its place enters it.
  const NamespacePtr next = Make("a", 2);
  ASSERT_TRUE(registry_.Replace(a, next));
  Drop(*a);
  Insert(*next, 1);
  EXPECT_EQ(registry_.IndexBytes(), Walked());
  Insert(*a, 255);  // A write that was under way.
  EXPECT_EQ(registry_.IndexBytes(), Walked());
  a.reset();
  EXPECT_EQ(registry_.IndexBytes(), Walked());

  ASSERT_TRUE(registry_.Replace(b, nullptr));
  Drop(*b);
  ASSERT_TRUE(registry_.Replace(next, nullptr));
  Drop(*next);
  EXPECT_EQ(registry_.IndexBytes(), 0u);
}

}  // namespace
}  // namespace cairn::cache
