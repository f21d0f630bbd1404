// Bumps: those that this node makes, and those of other members.

#include "services/cache/store/engine/bump_records.h"
#include "services/cache/store/engine/for_peers.h"
#include "services/cache/store/state/bump_record.h"
#include "tests/unit/cache/store/engine/source_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::testing::HasSubstr;

Bump BumpOf(const Fingerprint& fingerprint, uint64_t n) {
  Bump bump{fingerprint, {}};
  std::memcpy(bump.id.data(), &n, sizeof(n));
  return bump;
}

Status Hiccup() { return Errorf(StatusCode::kUnavailable, "hiccup"); }

class BumpsTest : public SourceTest {
 protected:
  // Ids 1000, 1001, ...
  Options WithIds(Options options = {}) {
    options.new_bump_id = [this] { return BumpOf(Fingerprint(), 1000 + ids_++).id; };
    return options;
  }
  PeerEngine& peers() { return *engine_->for_peers(); }
  uint64_t DigestOf(const Fingerprint& fingerprint) { return peers().BumpsDigestOf(fingerprint); }
  std::vector<Bump> Known() { return peers().Bumps(0, BumpPage::kMost).bumps; }
  Result<size_t> TakeOver(const std::vector<Bump>& bumps) { return peers().TakeOverBumps(bumps); }
  uint32_t Matched(uint64_t first, uint64_t last) {
    return Match(TestKeys(first, last), /*lease=*/false).matched_blocks;
  }
  uint64_t Generation() {
    for (const NamespaceInfo& info : engine_->ListNamespaces("")) {
      if (info.fingerprint == ns_) return info.generation;
    }
    return 0;
  }
  size_t Records() {
    size_t records = 0;
    EXPECT_OK(disk_->ListMeta([&](std::string_view name, std::string_view) {
      records += name.starts_with(kBumpMetaPrefix);
    }));
    return records;
  }
  // The digest of a member that knows these.
  static uint64_t DigestWith(const std::vector<Bump>& bumps) {
    MemoryAccount account(MemoryAccount::Unbounded());
    BumpLog log(&account);
    log.Add(bumps);
    return log.digest();
  }

  uint64_t ids_ = 0;
};

TEST_F(BumpsTest, EachDropAndEachEpochIsABumpWithAnIdOfItsOwn) {
  Start(WithIds());
  EXPECT_EQ(peers().BumpsDigest(), 0u);
  EXPECT_EQ(DigestOf(ns_), 0u);
  ASSERT_OK(engine_->BumpEpoch(ns_));
  ASSERT_EQ(Known().size(), 1u);
  EXPECT_EQ(Known()[0], BumpOf(ns_, 1000));
  const uint64_t once = DigestOf(ns_);
  EXPECT_NE(once, 0u);
  ASSERT_OK(engine_->DropNamespace(ns_));
  EXPECT_EQ(Known().size(), 2u);
  EXPECT_NE(DigestOf(ns_), once);
  // Dropped blocks are not there to be dropped again, and the bumps stay.
  EXPECT_EQ(engine_->BumpEpoch(ns_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(engine_->DropNamespace(ns_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Known().size(), 2u);
  std::vector<Fingerprint> of_tenant;
  for (const char* const model : {"a", "b"}) {
    NamespaceSpec spec = TestSpec(model);
    spec.tenant = "tenant";
    of_tenant.push_back(engine_->OpenNamespace(spec, false)->fingerprint);
  }
  ASSERT_OK(engine_->DropTenant("tenant"));
  const auto known = Known();
  ASSERT_EQ(known.size(), 4u);
  EXPECT_NE(known[2].id, known[3].id);
  for (const Fingerprint& fingerprint : of_tenant) EXPECT_NE(DigestOf(fingerprint), 0u);
  EXPECT_EQ(peers().BumpsDigest(), DigestWith(known));
}

TEST_F(BumpsTest, IdsAreTheSystemsUnlessTheOwnerGivesOthers) {
  Start();
  for (int i = 0; i < 3; ++i) ASSERT_OK(engine_->BumpEpoch(ns_));
  const auto known = Known();
  ASSERT_EQ(known.size(), 3u);
  EXPECT_NE(known[0].id, known[1].id);
  EXPECT_NE(known[1].id, known[2].id);
  EXPECT_NE(known[0].id, Bump::Id{});
}

TEST_F(BumpsTest, ABumpOfAnotherMemberHidesWhatIsHere) {
  StartWithoutDevice();
  StoreChain(1, 3);
  auto queue = *engine_->Watch({.fingerprint = ns_});
  const MatchResult match = Match(TestKeys(1, 3));
  const auto reserved = Reserve(Part(4, 3));
  ASSERT_OK(reserved);
  EXPECT_EQ(*TakeOver({BumpOf(ns_, 1)}), 1u);
  EXPECT_EQ(Matched(1, 3), 0u);
  EXPECT_EQ(engine_->GetStats().leases, 0u);
  EXPECT_EQ(engine_->GetStats().reservations, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kHost]->used_bytes, 0u);
  EXPECT_EQ(engine_->GetStats().tiers[TierKind::kDisk]->used_bytes, 0u);
  EXPECT_EQ(
      engine_->Fetch({.session = session_, .lease = *match.lease, .trace = ""}).status().code(),
      StatusCode::kNotFound);
  EXPECT_EQ(CommitOne(*reserved).code(), StatusCode::kNotFound);
  const auto events = queue->Next(10, clock_.Now());
  ASSERT_OK(events);
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ(events->front().kind, CacheEvent::Kind::kNamespaceDropped);
  // The namespace stays open, and takes new blocks.
  StoreChain(1, 2);
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  // A second time it says nothing new.
  EXPECT_EQ(*TakeOver({BumpOf(ns_, 1)}), 0u);
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  EXPECT_EQ(peers().BumpsDigest(), DigestWith({BumpOf(ns_, 1)}));
  EXPECT_EQ(DigestOf(ns_), peers().BumpsDigest());
}

TEST_F(BumpsTest, SeveralBumpsOfOneNamespaceHideOnce) {
  Start();
  StoreChain(1, 2);
  const Fingerprint other = Sha256::Of("elsewhere");
  EXPECT_EQ(*TakeOver({BumpOf(ns_, 1), BumpOf(other, 1), BumpOf(ns_, 2), BumpOf(ns_, 1)}), 3u);
  EXPECT_EQ(Generation(), 2u);
  EXPECT_EQ(Known(), (std::vector{BumpOf(ns_, 1), BumpOf(other, 1), BumpOf(ns_, 2)}));
  EXPECT_EQ(Records(), 1u);
}

TEST_F(BumpsTest, ABumpOfAnUnknownNamespaceIsRememberedAlone) {
  Start();
  StoreChain(1, 2);
  const NamespaceSpec spec = TestSpec("later");
  const Fingerprint later = cairn::Fingerprint(spec);
  EXPECT_EQ(*TakeOver({BumpOf(later, 1)}), 1u);
  EXPECT_EQ(engine_->ListNamespaces("").size(), 1u);
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  EXPECT_EQ(DigestOf(ns_), 0u);
  const uint64_t digest = DigestOf(later);
  EXPECT_NE(digest, 0u);
  EXPECT_EQ(engine_->BumpEpoch(later).status().code(), StatusCode::kNotFound);
  ASSERT_OK(engine_->OpenNamespace(spec, false));
  EXPECT_EQ(DigestOf(later), digest);
}

TEST_F(BumpsTest, MoreThanAPageIsRefused) {
  Start();
  std::vector<Bump> bumps;
  for (uint64_t n = 0; n <= BumpPage::kMost; ++n) bumps.push_back(BumpOf(ns_, n));
  EXPECT_THAT(TakeOver(bumps).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'bumps': got 4097")));
  bumps.pop_back();
  EXPECT_EQ(*TakeOver(bumps), BumpPage::kMost);
}

TEST_F(BumpsTest, WithoutMemoryNothingIsTakenOver) {
  Options options;
  options.memory = MemoryAccount::Unbounded();
  (*options.memory)[static_cast<size_t>(MemoryItem::kNamespaces)] = 64 << 10;
  Start(options);
  StoreChain(1, 2);
  std::vector<Bump> bumps;
  for (uint64_t n = 0; n < 1000; ++n) bumps.push_back(BumpOf(ns_, n));
  EXPECT_THAT(TakeOver(bumps).status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("limits.namespace_memory")));
  EXPECT_EQ(peers().BumpsDigest(), 0u);
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  // Its own work goes on all the same.
  ASSERT_OK(engine_->BumpEpoch(ns_));
  EXPECT_EQ(Known().size(), 1u);
}

TEST_F(BumpsTest, WithoutADiskBumpsAreKeptInMemory) {
  Options options;
  options.disk = false;
  Start(options);
  StoreChain(1, 2);
  EXPECT_EQ(*TakeOver({BumpOf(ns_, 1)}), 1u);
  EXPECT_EQ(Matched(1, 2), 0u);
  EXPECT_EQ(Known().size(), 1u);
}

TEST_F(BumpsTest, BumpsOutliveTheProcess) {
  Start(WithIds());
  const Fingerprint other = Sha256::Of("elsewhere");
  ASSERT_EQ(*TakeOver({BumpOf(other, 3), BumpOf(other, 2)}), 2u);
  ASSERT_OK(engine_->BumpEpoch(ns_));
  ASSERT_EQ(*TakeOver({BumpOf(ns_, 1)}), 1u);
  StoreChain(1, 2);
  Flush();
  const auto known = Known();
  const uint64_t digest = peers().BumpsDigest(), of_ns = DigestOf(ns_);
  for (int i = 0; i < 2; ++i) {
    CrashAndRestart();
    EXPECT_EQ(Known(), known);
    EXPECT_EQ(peers().BumpsDigest(), digest);
    EXPECT_EQ(DigestOf(ns_), of_ns);
    EXPECT_EQ(ServeAndVerify(1, 2), 2u);
    EXPECT_EQ(*TakeOver({BumpOf(other, 2)}), 0u);
  }
}

// The process dies after each number of meta writes. Whatever is known afterwards is hidden.
TEST_F(BumpsTest, ABumpThatIsKnownAfterAKillShowsNothingOfBefore) {
  const NamespaceSpec second = TestSpec("second");
  for (const bool own : {false, true}) {
    for (int writes = 0; writes <= 3; ++writes) {
      SCOPED_TRACE(fmt::format("own {}, {} writes", own, writes));
      disk_.reset();
      Start();
      const Fingerprint first = ns_;
      StoreChain(1, 2);
      ns_ = engine_->OpenNamespace(second, false)->fingerprint;
      const Fingerprint other = ns_;
      StoreChain(11, 12);
      Flush();
      disk_->FailMeta(1000, Hiccup(), writes);
      bool ok = true;
      if (own) {
        for (const Fingerprint& ns : {first, other}) ok = ok && engine_->BumpEpoch(ns).ok();
      } else {
        ok = TakeOver({BumpOf(first, 1), BumpOf(other, 1)}).ok();
      }
      EXPECT_EQ(ok, !own && writes == 3);
      disk_->FailMeta(0, OkStatus());
      CrashAndRestart();
      const auto shows = [&](const Fingerprint& ns, uint64_t from) {
        const auto keys = TestKeys(from, from + 1);
        const auto found = engine_->Exists(ns, keys);
        return found.ok() && ((*found)[0] || (*found)[1]);
      };
      for (const auto& [ns, from] : {std::pair(first, 1), std::pair(other, 11)}) {
        const bool known = DigestOf(ns) != 0;
        EXPECT_FALSE(known && shows(ns, from));
        // Blocks that were not hidden before the kill are still there.
        const int hidden_by = ns == first ? 1 : own ? 3 : 2;
        EXPECT_EQ(shows(ns, from), writes < hidden_by);
      }
      // Told again, it is taken over whole.
      ASSERT_OK(TakeOver({BumpOf(first, 1), BumpOf(other, 1)}));
      CrashAndRestart();
      EXPECT_FALSE(shows(first, 1) || shows(other, 11));
      EXPECT_NE(DigestOf(first), 0u);
      EXPECT_NE(DigestOf(other), 0u);
      engine_->CloseSession(session_);
      engine_.reset();
    }
  }
}

TEST_F(BumpsTest, ADiskThatFailsIsNamedAndTheBumpIsAskedForAgain) {
  Start();
  StoreChain(1, 2);
  for (const int writes : {0, 1}) {
    disk_->FailMeta(1, Hiccup(), writes);
    EXPECT_THAT(TakeOver({BumpOf(ns_, 1)}).status(),
                StatusIs(StatusCode::kUnavailable, HasSubstr("hiccup")));
    EXPECT_EQ(peers().BumpsDigest(), 0u);
    EXPECT_EQ(DigestOf(ns_), 0u);
  }
  EXPECT_EQ(*TakeOver({BumpOf(ns_, 1)}), 1u);
  EXPECT_EQ(Matched(1, 2), 0u);
}

TEST_F(BumpsTest, ABumpOfThisNodeIsToldAlsoWhenTheDiskFails) {
  Start();
  StoreChain(1, 2);
  disk_->FailMeta(1, Hiccup(), 1);
  EXPECT_THAT(engine_->BumpEpoch(ns_).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("other members are not told")));
  EXPECT_EQ(Matched(1, 2), 0u);
  EXPECT_EQ(Known().size(), 1u);
  EXPECT_EQ(Records(), 0u);
}

// Looks around while work is posted: the reclaimer's, in the middle of a bump.
class WatchfulExecutor final : public Executor {
 public:
  Status Post(std::function<void()> task) override {
    if (look) look();
    return inline_.Post(std::move(task));
  }
  std::function<void()> look;

 private:
  InlineExecutor inline_;
};

TEST_F(BumpsTest, WhileABumpIsTakenInTheDigestIsNobodys) {
  WatchfulExecutor watchful;
  executor_ = &watchful;
  Start();
  StoreChain(1, 2);
  std::vector<uint64_t> between;
  watchful.look = [&] { between.push_back(DigestOf(ns_)); };
  ASSERT_OK(TakeOver({BumpOf(ns_, 1)}));
  const size_t first = between.size();
  ASSERT_GT(first, 0u);
  const uint64_t taken_over = DigestOf(ns_);
  ASSERT_OK(engine_->BumpEpoch(ns_));
  ASSERT_GT(between.size(), first);
  watchful.look = nullptr;
  EXPECT_NE(between.front(), between.back());
  for (const uint64_t digest : between) {
    EXPECT_NE(digest, 0u);
    EXPECT_NE(digest, taken_over);
    EXPECT_NE(digest, DigestOf(ns_));
  }
  engine_->CloseSession(session_);
  engine_.reset();
}

TEST_F(BumpsTest, ACopyThatBeganBeforeABumpIsNotShownAfterIt) {
  StartWithSource();
  GiveSource(1, 2);
  const auto asked = Ask(TestKeys(1, 2));
  ASSERT_EQ(asked->result().matched_blocks, 2u);
  const auto stream = Begin(asked->result());
  source_.HoldAnswers();
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  ASSERT_EQ(source_.waiting(), 2u);
  ASSERT_OK(TakeOver({BumpOf(ns_, 1)}));
  source_.ReleaseAnswers();
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_TRUE(fetched.slices.empty());
  EXPECT_EQ(fetched.failures.size(), 2u);
  EXPECT_EQ(BlocksInHost(1, 2), 0u);
  EXPECT_EQ(host_->GetStats().used_bytes, 0u);
  // The same blocks come in again.
  EXPECT_EQ(TakeAll(Ask(TestKeys(1, 2))->result(), 1).slices.size(), 2u * kLayers);
  EXPECT_EQ(BlocksInHost(1, 2), 2u);
}

TEST(BumpRecordsTest, OldRecordsGoWhenAllOfTheirBumpsAreForgotten) {
  FakeTier disk;
  MemoryAccount account(MemoryAccount::Unbounded());
  const Fingerprint ns = Sha256::Of("ns");
  const auto names = [&] {
    std::vector<std::string> found;
    EXPECT_OK(
        disk.ListMeta([&](std::string_view name, std::string_view) { found.emplace_back(name); }));
    return found;
  };
  constexpr size_t kRecords = BumpLog::kKept / BumpPage::kMost;
  uint64_t digest = 0;
  {
    BumpLog log(&account);
    BumpRecords records(&disk);
    ASSERT_OK(records.Load(&log));
    for (uint64_t n = 1; n <= kRecords + 2; ++n) {
      std::vector<Bump> bumps;
      for (uint64_t i = 0; i < BumpPage::kMost; ++i) bumps.push_back(BumpOf(ns, n << 32 | i));
      ASSERT_OK(records.Append(bumps));
      log.Add(bumps);
    }
    digest = log.digest();
  }
  ASSERT_EQ(names().size(), kRecords);
  EXPECT_EQ(names().front(), BumpMetaName(3));
  // A damaged record is passed over, and its name is not used again.
  ASSERT_OK(disk.PutMeta(BumpMetaName(1000), "damaged"));
  BumpLog log(&account);
  BumpRecords records(&disk);
  ASSERT_OK(records.Load(&log));
  EXPECT_EQ(log.digest(), digest);
  ASSERT_OK(records.Append({}));
  EXPECT_EQ(names().back(), BumpMetaName(1001));
}

}  // namespace
}  // namespace cairn::cache::testing
