// Indexes of contexts whose rows come in parts, and those that lie at a cache node.

#include "services/worker/methods/reading/row_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cairn/client/testing/in_memory_cache_client.h"
#include "services/worker/methods/reading/context_layers.h"
#include "services/worker/methods/reading/index_store.h"
#include "services/worker/session/worker_namespace.h"
#include "tests/unit/worker/methods/reading/context_fixture.h"

namespace cairn::worker {
namespace {

using client::testing::Faults;
using client::testing::InMemoryCacheClient;

constexpr int64_t kRows = 6 * 64;

class RowIndexTest : public ContextFixture {
 protected:
  std::unique_ptr<RowIndex> Empty(const std::string& policy, int64_t rows = kRows) {
    return RowIndex::Make(*ParseReadPolicy(policy), kKv, rows, kernels::BestCpuBackend());
  }
  // The rows come in parts of `blocks` blocks.
  std::unique_ptr<RowIndex> Made(const std::string& policy, const KvSequence& context,
                                 size_t blocks) {
    auto index = Empty(policy, context.length());
    PageLayers layers(FarPages::Of(context, context.length() / kKv.block_tokens));
    for (int layer = 0; layer < kKv.layers; ++layer) {
      EXPECT_OK(layers.Begin(layer));
      const auto slices = *layers.Next();
      for (size_t at = 0; at < slices.size(); at += blocks) {
        const LayerView part(kKv, slices.subspan(at, std::min(blocks, slices.size() - at)),
                             static_cast<int64_t>(at) * kKv.block_tokens);
        EXPECT_TRUE(index->AddRows(layer, part, pool_));
      }
    }
    return index;
  }
  static void ExpectEqual(const RowIndex& got, const RowIndex& want) {
    ASSERT_EQ(got.units(), want.units());
    ASSERT_EQ(got.stored(), want.stored());
    const std::vector<float> q(kDim, 1.0f);
    std::vector<float> got_form(static_cast<size_t>(got.width())), want_form = got_form;
    for (int layer = 0; layer < kKv.layers; ++layer) {
      for (int head = 0; head < kKv.kv_heads; ++head) {
        const kernels::CopyRows a = got.Units(layer, head), b = want.Units(layer, head);
        ASSERT_EQ(a.row_bytes(), b.row_bytes());
        EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(got.stored() * a.row_bytes())),
                  0);
        EXPECT_THAT(got.Shared(layer, head), ::testing::ElementsAreArray(want.Shared(layer, head)));
        got.Form(layer, head, q.data(), got_form.data());
        want.Form(layer, head, q.data(), want_form.data());
        EXPECT_EQ(got_form, want_form);
      }
    }
  }

  static NamespaceSpec KvSpec(const std::string& salt = "") {
    NamespaceInputs inputs;
    inputs.salt = salt;
    inputs.model = "m";
    inputs.kv = kKv;
    inputs.numerics = "n";
    return WorkerNamespace(inputs)->spec;
  }
  static IndexStore Store(InMemoryCacheClient& node, const std::string& policy,
                          const NamespaceSpec& kv = KvSpec()) {
    return IndexStore(node, kv, *ParseReadPolicy(policy), {});
  }
  static BlockKey Key(const std::string& text) { return Sha256().Update(text).Finish(); }
};

TEST_F(RowIndexTest, RowsThatComeInPartsGiveTheSameIndex) {
  const KvSequence context = RandomContext(kRows);
  // Pages of 7, 100 and 256 rows do not end where parts do.
  for (const char* policy : {"precision", "keys-copy", "exact-topk", "quest", "quest:page=7",
                             "landmark:page=100", "landmark:page=256", "clusters", "infinigen"}) {
    SCOPED_TRACE(policy);
    const auto whole = Made(policy, context, 6);
    for (const size_t blocks : {1, 4, 5}) ExpectEqual(*Made(policy, context, blocks), *whole);
  }
}

TEST_F(RowIndexTest, NumbersThatAreNotFiniteAreFoundInAnyPart) {
  KvSequence context = RandomContext(kRows);
  reinterpret_cast<uint16_t*>(context.LayerSlice(5, 1).data())[17] = 0x7e00;
  PageLayers layers(FarPages::Of(context, 6));
  ASSERT_OK(layers.Begin(1));
  const auto slices = *layers.Next();
  for (const char* policy : {"precision", "landmark:page=100", "clusters", "infinigen"}) {
    const auto index = Empty(policy);
    EXPECT_TRUE(index->AddRows(1, LayerView(kKv, slices.first(4), 0), pool_)) << policy;
    EXPECT_FALSE(index->AddRows(1, LayerView(kKv, slices.subspan(4), 256), pool_)) << policy;
  }
}

TEST_F(RowIndexTest, AnIndexThatWasPushedIsFetchedAsItWas) {
  InMemoryCacheClient node;
  const auto made = Made("clusters", RandomContext(kRows), 6);
  const IndexStore store = Store(node, "clusters");
  EXPECT_FALSE(store.Fetch(Key("a"), *Empty("clusters"), "")) << "before it is there";
  ASSERT_TRUE(store.Push(Key("a"), *made, 0.5, ""));
  EXPECT_EQ(node.complete_blocks(), static_cast<uint64_t>(kKv.layers));
  const auto fetched = Empty("clusters");
  ASSERT_TRUE(Store(node, "clusters").Fetch(Key("a"), *fetched, ""));
  ExpectEqual(*fetched, *made);
  EXPECT_TRUE(store.Push(Key("a"), *made, 0.5, "")) << "the node has it";
  EXPECT_EQ(node.leases(), 0u);
}

TEST_F(RowIndexTest, IndexesOfOtherContextsFormsAndTenantsAreNotTaken) {
  InMemoryCacheClient node;
  const auto made = Made("clusters", RandomContext(kRows), 6);
  ASSERT_TRUE(Store(node, "clusters").Push(Key("a"), *made, 0.5, ""));
  EXPECT_FALSE(Store(node, "clusters").Fetch(Key("b"), *Empty("clusters"), ""));
  EXPECT_FALSE(
      Store(node, "clusters:centres=0.1").Fetch(Key("a"), *Empty("clusters:centres=0.1"), ""));
  EXPECT_FALSE(Store(node, "clusters", KvSpec("other")).Fetch(Key("a"), *Empty("clusters"), ""));
  // As if a key stood for a context of another length.
  EXPECT_FALSE(Store(node, "clusters").Fetch(Key("a"), *Empty("clusters", kRows - 64), ""));
}

TEST_F(RowIndexTest, WhatTheNodeCannotGiveOrTakeIsSaidToTheCaller) {
  InMemoryCacheClient node;
  const auto made = Made("clusters", RandomContext(kRows), 6);
  const IndexStore store = Store(node, "clusters");
  ASSERT_TRUE(store.Push(Key("a"), *made, 0.5, ""));
  Faults evicted;
  evicted.evict_block = 1;
  node.SetFaults(evicted);
  EXPECT_FALSE(store.Fetch(Key("a"), *Empty("clusters"), "")) << "half of it is gone";
  Faults away;
  away.every_call = Status(StatusCode::kUnavailable, "no node");
  node.SetFaults(away);
  EXPECT_FALSE(store.Fetch(Key("a"), *Empty("clusters"), ""));
  EXPECT_FALSE(store.Push(Key("b"), *made, 0.5, ""));
}

TEST_F(RowIndexTest, BytesThatAreNoIndexOfTheContextAreRefused) {
  const auto made = Made("clusters", RandomContext(kRows), 6);
  std::vector<std::byte> saved(made->LayerBytes());
  made->Save(1, saved);
  const auto index = Empty("clusters");
  EXPECT_TRUE(index->Load(1, saved));
  EXPECT_FALSE(index->Load(1, std::span(saved).first(saved.size() - 2)));
  // The last row's cluster is one that does not exist; the first mean begins with a NaN.
  std::vector<std::byte> bad = saved;
  const uint16_t cluster = static_cast<uint16_t>(made->stored());
  std::memcpy(bad.data() + bad.size() - 2, &cluster, 2);
  EXPECT_FALSE(index->Load(1, bad));
  bad = saved;
  const uint16_t nan = 0x7e00;
  std::memcpy(bad.data(), &nan, 2);
  EXPECT_FALSE(index->Load(1, bad));
}

}  // namespace
}  // namespace cairn::worker
