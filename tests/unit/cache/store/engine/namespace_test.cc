// Namespaces, tenants, events.

#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;
using Kind = CacheEvent::Kind;

class NamespaceTest : public EngineTest {
 protected:
  std::vector<CacheEvent> Events(EventQueue& queue) {
    auto events = queue.Next(1000, clock_.Now());
    EXPECT_OK(events);
    return events.ok() ? *events : std::vector<CacheEvent>{};
  }
};

TEST_F(NamespaceTest, OpeningTwiceFindsTheSame) {
  Start();
  const auto again = engine_->OpenNamespace(spec_, true);
  ASSERT_OK(again);
  EXPECT_FALSE(again->created);
  EXPECT_EQ(again->fingerprint, ns_);
  EXPECT_EQ(**engine_->GetNamespace(ns_), spec_);
}

TEST_F(NamespaceTest, OneDifferentFieldIsNamedNeverSilent) {
  Start();
  StoreChain(1, 3);
  NamespaceSpec other = spec_;
  other.revision = "2";
  EXPECT_THAT(engine_->OpenNamespace(other, true).status(),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("revision")));
  const auto opened = engine_->OpenNamespace(other, false);
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->created);
  ASSERT_EQ(opened->differs.size(), 1u);
  EXPECT_EQ(opened->differs[0].difference.field, "revision");
  EXPECT_EQ(opened->differs[0].stored_blocks, 3u);
  ns_ = opened->fingerprint;
  EXPECT_EQ(Match(TestKeys(1, 3)).miss_reason, MissReason::kFingerprint);
  other.model = "another";
  EXPECT_EQ(engine_->OpenNamespace(other, false)->differs.size(),
            1u);  // From revision 2 by the model alone.
}

TEST_F(NamespaceTest, ARecipeThatCannotStoreThePlanesIsRefused) {
  Start();
  NamespaceSpec spec = TestSpec("planes");
  std::vector<Plane>& planes = std::get<NativeLayout>(spec.layout.form).groups[0].planes;
  const auto open = [&](const std::string& recipe) {
    spec.recipe = recipe;
    return engine_->OpenNamespace(spec, false).status();
  };
  EXPECT_OK(open("int8:group=32"));
  planes[0].dim = planes[1].dim = 48;
  EXPECT_THAT(open("turbo"), StatusIs(StatusCode::kInvalidArgument,
                                      HasSubstr("field 'recipe': got 'turbo', but 'turbo' cannot "
                                                "store layer 0: k.dim: got 48")));
  planes[1].dtype = DType::kBF16;
  EXPECT_THAT(open("int8:group=16"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("field 'recipe': got 'int8:group=16', expected raw, or planes")));
  EXPECT_OK(open("raw"));
  EXPECT_EQ(engine_->ListNamespaces("").size(), 3u);
}

TEST_F(NamespaceTest, NamespacesDoNotSeeEachOther) {
  Start();
  StoreChain(1, 3);
  ns_ = engine_->OpenNamespace(TestSpec("other"), false)->fingerprint;
  EXPECT_EQ(Match(TestKeys(1, 3)).matched_blocks, 0u);
}

TEST_F(NamespaceTest, DropTenantTakesAllOfHisAndNothingElse) {
  Start();
  StoreChain(1, 3);
  NamespaceSpec a = TestSpec("a"), b = TestSpec("b");
  a.tenant = b.tenant = "leaving";
  const Fingerprint stays = ns_;
  for (const auto* spec : {&a, &b}) {
    ns_ = engine_->OpenNamespace(*spec, false)->fingerprint;
    StoreChain(1, 2);
  }
  EXPECT_EQ(engine_->ListNamespaces("leaving").size(), 2u);
  const auto dropped = engine_->DropTenant("leaving");
  ASSERT_OK(dropped);
  EXPECT_EQ(dropped->namespaces, 2u);
  EXPECT_EQ(dropped->hidden_blocks, 4u);
  EXPECT_EQ(engine_->ListNamespaces("leaving").size(), 0u);
  EXPECT_EQ(engine_->ListNamespaces("").size(), 1u);
  ns_ = stays;
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->extents, 3u);
}

TEST_F(NamespaceTest, DropEndsTimedLeasesAndReservations) {
  Start();
  StoreChain(1, 3);
  const MatchResult match = Match(TestKeys(1, 3));
  const auto reserved = Reserve(Part(4, 3));
  ASSERT_OK(reserved);
  ASSERT_EQ(engine_->GetStats().leases, 1u);
  ASSERT_EQ(engine_->GetStats().reservations, 1u);
  ASSERT_GT(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  ASSERT_OK(engine_->DropNamespace(ns_));
  EXPECT_EQ(engine_->GetStats().leases, 0u);
  EXPECT_EQ(engine_->GetStats().reservations, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->used_bytes, 0u);
  // Whoever has the lease reads nothing under it any more.
  EXPECT_THAT(engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""}).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("lease")));
  EXPECT_THAT(CommitOne(*reserved), StatusIs(StatusCode::kNotFound, HasSubstr("reservation")));
  EXPECT_THAT(engine_->DropNamespace(ns_).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("namespace")));
}

TEST_F(NamespaceTest, WatchersSeeWhatHappensInOrder) {
  Options options;
  options.disk = false;
  Start(options);
  StoreChain(1, 2);
  auto queue = *engine_->Watch({.fingerprint = ns_, .snapshot = true});
  auto events = Events(*queue);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].kind, Kind::kStored);
  EXPECT_EQ(events[2].kind, Kind::kSnapshotEnd);
  ASSERT_OK(Store(3, 2));
  events = Events(*queue);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kStored);
  EXPECT_EQ(events[0].key, TestKey(3));
  EXPECT_EQ(events[0].parent, TestKey(2));
  EXPECT_EQ(events[0].node_epoch, 1u);
  const uint64_t sequence = events[0].sequence;
  for (uint64_t n = 100; n < 330; ++n) ASSERT_OK(Store(n, std::nullopt));
  events = Events(*queue);
  bool removed = false;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].sequence, sequence + 1 + i);
    removed |= events[i].kind == Kind::kRemoved && events[i].key == TestKey(3);
  }
  EXPECT_TRUE(removed);
  ASSERT_OK(engine_->DropNamespace(ns_));
  events = Events(*queue);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kNamespaceDropped);
}

TEST_F(NamespaceTest, TierChangesAreEvents) {
  Start();
  auto queue = *engine_->Watch({});
  ASSERT_OK(Store(1, std::nullopt));
  const auto events = Events(*queue);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kStored);
  EXPECT_EQ(events[1].kind, Kind::kTierAdded);
  EXPECT_EQ(events[1].tier, TierKind::kDisk);
}

TEST_F(NamespaceTest, ASlowWatcherLosesItsQueueAndCancelWakes) {
  Options options;
  options.disk = false;
  options.engine.watch_queue_capacity = 4;
  Start(options);
  auto queue = *engine_->Watch({});
  StoreChain(1, 5);
  EXPECT_THAT(queue->Next(10, clock_.Now()).status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("snapshot")));
  EXPECT_GT(engine_->GetStats().dropped_events, 0u);
  auto other = *engine_->Watch({});
  other->Cancel();
  EXPECT_EQ(other->Next(10, TimePoint::max()).status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace cairn::cache::testing
