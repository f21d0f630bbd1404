// The receivers of a watch's events: a session that named a tenant hears of this tenant alone.

#include <set>

#include "services/cache/store/state/namespace_registry.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;
using Kind = CacheEvent::Kind;

class WatchByTenantTest : public EngineTest {
 protected:
  void SetUp() override {
    spec_.tenant = "a";
    StartWithoutDevice();
    a_ = ns_;
    NamespaceSpec spec = spec_;
    spec.revision = "2";
    also_a_ = engine_->OpenNamespace(spec, false)->fingerprint;
    spec.tenant = "b";
    b_ = engine_->OpenNamespace(spec, false)->fingerprint;
    of_a_ = *engine_->OpenSession("a", "a");
    of_b_ = *engine_->OpenSession("b", "b");
  }
  void StoreIn(const Fingerprint& ns, uint64_t n) {
    ns_ = ns;
    ASSERT_OK(Store(n, std::nullopt));
  }
  struct Heard {
    std::set<Fingerprint> stored, dropped;
    int ends = 0;
  };
  static Heard Listen(EventQueue& queue) {
    Heard heard;
    for (;;) {
      const auto events = queue.Next(64, TimePoint());
      EXPECT_OK(events);
      if (!events.ok() || events->empty()) return heard;
      for (const CacheEvent& event : *events) {
        if (event.kind == Kind::kStored) heard.stored.insert(event.fingerprint);
        if (event.kind == Kind::kNamespaceDropped) heard.dropped.insert(event.fingerprint);
        heard.ends += event.kind == Kind::kSnapshotEnd;
      }
    }
  }

  Fingerprint a_, also_a_, b_;
  SessionId of_a_ = 0, of_b_ = 0;
};

TEST_F(WatchByTenantTest, ASessionHearsOfItsTenantAlone) {
  uint64_t n = 0;
  for (const Fingerprint& ns : {a_, also_a_, b_}) StoreIn(ns, ++n);
  auto by_a = *engine_->Watch({.session = of_a_, .snapshot = true});
  auto by_b = *engine_->Watch({.session = of_b_, .snapshot = true});
  const Heard snapshot = Listen(*by_a);
  EXPECT_EQ(snapshot.stored, (std::set<Fingerprint>{a_, also_a_}));
  EXPECT_EQ(snapshot.ends, 1);
  EXPECT_EQ(Listen(*by_b).stored, std::set<Fingerprint>{b_});
  for (const Fingerprint& ns : {a_, also_a_, b_}) StoreIn(ns, ++n);
  ASSERT_OK(engine_->DropTenant("b"));
  ASSERT_OK(engine_->DropNamespace(also_a_));
  const Heard live = Listen(*by_a);
  EXPECT_EQ(live.stored, (std::set<Fingerprint>{a_, also_a_}));
  EXPECT_EQ(live.dropped, std::set<Fingerprint>{also_a_});
  const Heard others = Listen(*by_b);
  EXPECT_EQ(others.stored, std::set<Fingerprint>{b_});
  EXPECT_EQ(others.dropped, std::set<Fingerprint>{b_});
}

TEST_F(WatchByTenantTest, AnotherTenantsNamespaceIsNotThere) {
  EXPECT_OK(engine_->Watch({.session = of_a_, .fingerprint = also_a_}));
  EXPECT_THAT(engine_->Watch({.session = of_a_, .fingerprint = b_}).status(),
              StatusIs(StatusCode::kNotFound, Message(NoNamespace(b_))));
}

TEST_F(WatchByTenantTest, WhoNamesNoTenantHearsOfAll) {
  auto of_session = *engine_->Watch({.session = session_});
  auto of_nobody = *engine_->Watch({});
  EXPECT_OK(engine_->Watch({.session = session_, .fingerprint = b_}));
  uint64_t n = 0;
  for (const Fingerprint& ns : {a_, b_}) StoreIn(ns, ++n);
  EXPECT_EQ(Listen(*of_session).stored, (std::set<Fingerprint>{a_, b_}));
  EXPECT_EQ(Listen(*of_nobody).stored, (std::set<Fingerprint>{a_, b_}));
}

// For a part of the node that is about one tenant.
TEST_F(WatchByTenantTest, ATenantMayBeNamedWithoutASession) {
  uint64_t n = 0;
  for (const Fingerprint& ns : {a_, b_}) StoreIn(ns, ++n);
  auto watch = *engine_->Watch({.snapshot = true, .tenant = "b"});
  EXPECT_EQ(Listen(*watch).stored, std::set<Fingerprint>{b_});
  for (const Fingerprint& ns : {a_, b_}) StoreIn(ns, ++n);
  ASSERT_OK(engine_->DropTenant("a"));
  const Heard live = Listen(*watch);
  EXPECT_EQ(live.stored, std::set<Fingerprint>{b_});
  EXPECT_TRUE(live.dropped.empty());
  // A session's own tenant is what counts.
  auto of_session = *engine_->Watch({.session = of_b_, .tenant = "a"});
  StoreIn(b_, ++n);
  EXPECT_EQ(Listen(*of_session).stored, std::set<Fingerprint>{b_});
}

TEST_F(WatchByTenantTest, ASessionThatEndedBeginsNoWatchAndKeepsItsOwn) {
  auto watch = *engine_->Watch({.session = of_a_});
  engine_->CloseSession(of_a_);
  EXPECT_THAT(engine_->Watch({.session = of_a_}).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("session_id")));
  StoreIn(a_, 1);
  StoreIn(b_, 2);
  EXPECT_EQ(Listen(*watch).stored, std::set<Fingerprint>{a_});
}

TEST_F(WatchByTenantTest, ANamespaceThatIsNotThereIsNotWatched) {
  ASSERT_OK(engine_->DropNamespace(b_));
  EXPECT_THAT(engine_->Watch({.fingerprint = b_}).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("fingerprint")));
}

}  // namespace
}  // namespace cairn::cache::testing
