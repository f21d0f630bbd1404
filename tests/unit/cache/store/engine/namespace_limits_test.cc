// How many namespaces a node keeps, for whom, and what they cost.

#include "services/cache/store/block/record.h"
#include "services/cache/store/state/bump_log.h"
#include "services/cache/store/state/memory_account.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

NamespaceSpec SpecOf(const std::string& tenant, uint64_t n) {
  NamespaceSpec spec = TestSpec(fmt::format("model{}", n));
  spec.tenant = tenant;
  spec.revision = fmt::format("r{}", n);
  return spec;
}

class NamespaceLimitsTest : public EngineTest {
 protected:
  void StartWith(uint32_t max_namespaces) {
    Options options;
    options.engine.max_namespaces = max_namespaces;
    StartWithoutDevice(options);
  }
  Status Open(const NamespaceSpec& spec) { return engine_->OpenNamespace(spec, false).status(); }
  // One block of a namespace of its own.
  Status StoreIn(const NamespaceSpec& spec, uint64_t n) {
    const auto opened = engine_->OpenNamespace(spec, false);
    CAIRN_RETURN_IF_ERROR(opened.status());
    const Fingerprint before = std::exchange(ns_, opened->fingerprint);
    const Status stored = Store(n, std::nullopt);
    ns_ = before;
    return stored;
  }
  bool Knows(const NamespaceSpec& spec) {
    return engine_->GetNamespace(cairn::Fingerprint(spec)).ok();
  }
  size_t Records() {
    size_t records = 0;
    EXPECT_OK(disk_->ListMeta([&](std::string_view name, std::string_view) {
      records += name.starts_with(kNamespaceMetaPrefix);
    }));
    return records;
  }
};

TEST_F(NamespaceLimitsTest, ADifferentSaltIsNamedButNeverShown) {
  Start();
  NamespaceSpec theirs = TestSpec("salted");
  theirs.salt = "top-secret-salt";
  ASSERT_OK(Open(theirs));
  NamespaceSpec mine = theirs;
  mine.salt = "my-own-salt";
  const auto opened = engine_->OpenNamespace(mine, false);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->differs.size(), 1u);
  const FieldDifference& difference = opened->differs[0].difference;
  EXPECT_EQ(difference.field, "salt");
  mine.salt = "";
  const Status strict = engine_->OpenNamespace(mine, true).status();
  EXPECT_THAT(strict, StatusIs(StatusCode::kFailedPrecondition, HasSubstr("salt")));
  for (const std::string& text :
       {difference.stored, difference.requested, std::string(Message(strict))}) {
    for (const char* const secret : {"top-secret", "746f70", "my-own", "6d792d"}) {
      EXPECT_THAT(text, Not(HasSubstr(secret)));
    }
  }
}

TEST_F(NamespaceLimitsTest, OneTenantTakesAtMostHalfOfWhatOthersLeave) {
  StartWith(40);
  uint64_t taken = 0;
  while (taken < 100 && StoreIn(SpecOf("greedy", taken), taken + 1).ok()) ++taken;
  EXPECT_EQ(taken, 19u);  // The fixture's is the first of 40.
  EXPECT_THAT(Open(SpecOf("greedy", 1000)),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("tenant 'greedy'")));
  EXPECT_OK(Open(SpecOf("greedy", 3)));  // One that is open already.
  EXPECT_OK(Open(SpecOf("honest", 1)));
}

TEST_F(NamespaceLimitsTest, EmptyNamespacesMakeWay) {
  StartWith(16);
  ASSERT_OK(StoreIn(SpecOf("honest", 0), 1));
  // Many names, one flood.
  for (uint64_t n = 0; n < 200; ++n) {
    EXPECT_OK(Open(SpecOf(fmt::format("flood{}", n % 50), n))) << n;
    clock_.Advance(std::chrono::milliseconds(10));
  }
  EXPECT_LE(engine_->GetStats().namespaces, 16u);
  EXPECT_OK(Open(SpecOf("newcomer", 0)));
  EXPECT_TRUE(Knows(SpecOf("honest", 0)));
}

TEST_F(NamespaceLimitsTest, TheOneThatWasUsedLastStaysLongest) {
  StartWith(6);
  const auto tenant = [](uint64_t n) { return fmt::format("t{}", n); };
  for (uint64_t n = 0; n < 5; ++n) {
    ASSERT_OK(Open(SpecOf(tenant(n), n)));
    clock_.Advance(std::chrono::seconds(1));
  }
  // The fixture's and all but t1 are asked for something.
  for (const uint64_t n : {0, 2, 3, 4}) {
    ASSERT_OK(engine_->Exists(cairn::Fingerprint(SpecOf(tenant(n), n)), TestKeys(1, 1)));
  }
  ASSERT_OK(engine_->Exists(ns_, TestKeys(1, 1)));
  ASSERT_OK(Open(SpecOf("t9", 9)));
  EXPECT_FALSE(Knows(SpecOf("t1", 1)));
  for (const uint64_t n : {0, 2, 3, 4}) EXPECT_TRUE(Knows(SpecOf(tenant(n), n))) << n;
}

TEST_F(NamespaceLimitsTest, NamespacesInUseAreNotGivenBack) {
  StartWith(3);
  const NamespaceSpec stored = SpecOf("a", 1), written = SpecOf("b", 2);
  ASSERT_OK(StoreIn(stored, 1));
  const auto opened = engine_->OpenNamespace(written, false);
  ASSERT_OK(opened);
  const Fingerprint before = std::exchange(ns_, opened->fingerprint);
  const auto reserved = Reserve(Part(1, std::nullopt));
  ASSERT_OK(reserved);
  clock_.Advance(std::chrono::seconds(20));
  EXPECT_OK(Open(SpecOf("c", 3)));  // In place of the fixture's own.
  EXPECT_TRUE(Knows(stored));
  EXPECT_TRUE(Knows(written));
  EXPECT_THAT(engine_->GetNamespace(before).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("open it first")));
  ASSERT_OK(engine_->Write(session_, *reserved, 0, TestPart(spec_.layout, 1, Whole())));
  EXPECT_OK(CommitOne(*reserved));
  EXPECT_OK(StoreIn(SpecOf("c", 3), 1));
  EXPECT_THAT(Open(SpecOf("d", 4)),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("limits.namespaces")));
}

TEST_F(NamespaceLimitsTest, WhatIsGivenBackIsOpenedAgainAsBefore) {
  StartWith(2);
  const NamespaceSpec again = SpecOf("a", 1);
  ASSERT_OK(StoreIn(again, 1));
  Flush();
  // Old generations of it must never come back, however often it is opened again.
  ASSERT_OK(engine_->BumpEpoch(cairn::Fingerprint(again)));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(Open(SpecOf("b", 2)));
    ASSERT_OK(Open(SpecOf("c", 3)));
    EXPECT_FALSE(Knows(again));
    ASSERT_OK(Open(again));
    EXPECT_GE(engine_->ListNamespaces("a")[0].generation, 2u);
  }
  CrashAndRestart();
  ns_ = engine_->OpenNamespace(again, false)->fingerprint;
  EXPECT_EQ(Match(TestKeys(1, 1)).matched_blocks, 0u);
}

TEST_F(NamespaceLimitsTest, ANamespaceIsOnDiskWhenItsBlocksAre) {
  StartWith(100);
  for (uint64_t n = 0; n < 20; ++n) ASSERT_OK(Open(SpecOf("flood", n)));
  EXPECT_EQ(Records(), 0u);
  ASSERT_OK(StoreIn(SpecOf("flood", 7), 1));
  Flush();
  EXPECT_EQ(Records(), 1u);
  CrashAndRestart();
  EXPECT_EQ(engine_->ListNamespaces("flood").size(), 1u);
  EXPECT_TRUE(Knows(SpecOf("flood", 7)));
}

TEST_F(NamespaceLimitsTest, TheirMemoryIsChargedAndGivenBack) {
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(MemoryItem::kNamespaces)] = 256 << 10;
  MemoryAccount account(bounds);
  memory_ = &account;
  StartWith(4096);
  ASSERT_OK(Store(1, std::nullopt));
  const uint64_t one = account.used(MemoryItem::kNamespaces);
  EXPECT_GT(one, 1000u);
  uint64_t n = 0;
  Status last;
  for (; n < 2000; ++n) {
    last = StoreIn(SpecOf(fmt::format("t{}", n % 100), n), n + 1);
    if (!last.ok()) break;
  }
  EXPECT_GT(n, 10u);
  EXPECT_THAT(last, StatusIs(StatusCode::kResourceExhausted, HasSubstr("namespaces")));
  EXPECT_LE(account.used(MemoryItem::kNamespaces), 256u << 10);
  for (uint64_t t = 0; t < 100; ++t) (void)engine_->DropTenant(fmt::format("t{}", t));
  engine_->Tick();
  // The rest is the memory of the drops.
  EXPECT_LE(account.used(MemoryItem::kNamespaces), one + n * BumpLog::kBumpBytes);
  const uint64_t after = account.used(MemoryItem::kNamespaces);
  // The next epoch of a namespace needs no more memory than that of its bump.
  ASSERT_OK(engine_->BumpEpoch(ns_));
  EXPECT_EQ(account.used(MemoryItem::kNamespaces), after + BumpLog::kBumpBytes);
  engine_->CloseSession(session_);
  engine_.reset();
  EXPECT_EQ(account.used(MemoryItem::kNamespaces), 0u);
}

TEST_F(NamespaceLimitsTest, ARestartAtTheSameBudgetTakesEverythingBack) {
  MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
  bounds[static_cast<size_t>(MemoryItem::kNamespaces)] = 256 << 10;
  MemoryAccount account(bounds);
  memory_ = &account;
  StartWith(64);
  ASSERT_OK(Store(1, std::nullopt));
  uint64_t stored = 0;
  while (stored < 100 && StoreIn(SpecOf(fmt::format("t{}", stored), stored), stored + 1).ok()) {
    ++stored;
  }
  EXPECT_GT(stored, 10u);
  Flush();
  for (int i = 0; i < 2; ++i) {
    CrashAndRestart();
    EXPECT_EQ(engine_->GetStats().blocks, stored + 1);
  }
  engine_->CloseSession(session_);
  engine_.reset();
}

TEST_F(NamespaceLimitsTest, ALowerLimitRefusesToStartAndLosesNothing) {
  StartWith(40);
  for (uint64_t n = 0; n < 10; ++n) ASSERT_OK(StoreIn(SpecOf(fmt::format("t{}", n), n), n + 1));
  Flush();
  engine_.reset();
  Options options = options_;
  options.engine.max_namespaces = 5;
  disk_->Crash();
  EXPECT_THAT(Create(options), StatusIs(StatusCode::kFailedPrecondition,
                                        AllOf(HasSubstr("limits.namespaces"),
                                              HasSubstr("none of these blocks was deleted"))));
  options.engine.max_namespaces = 40;
  disk_->Crash();
  StartWithoutDevice(options);
  EXPECT_EQ(engine_->GetStats().blocks, 10u);
}

TEST_F(NamespaceLimitsTest, ARecordOfAnotherVersionRefusesToStartAndLosesNothing) {
  StartWith(40);
  StoreChain(1, 3);
  Flush();
  engine_.reset();
  std::string record;
  ASSERT_OK(disk_->ListMeta([&](std::string_view name, std::string_view value) {
    if (name == NamespaceMetaName(ns_)) record = value;
  }));
  ASSERT_FALSE(record.empty());
  std::string newer = record;
  newer[0] = 9;
  // As in every version, the last eight bytes are the hash of the others.
  const auto bytes = std::as_writable_bytes(std::span(newer));
  const uint64_t hash = Xxh3(bytes.first(bytes.size() - sizeof(hash)));
  std::memcpy(bytes.last(sizeof(hash)).data(), &hash, sizeof(hash));
  ASSERT_OK(disk_->PutMeta(NamespaceMetaName(ns_), newer));
  disk_->Crash();
  EXPECT_THAT(Create(options_), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("version")));
  ASSERT_OK(disk_->PutMeta(NamespaceMetaName(ns_), record));
  disk_->Crash();
  StartWithoutDevice(options_);
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);
}

}  // namespace
}  // namespace cairn::cache::testing
