#include "services/worker/session/prefix_session.h"

#include "cairn/common/part.h"
#include "tests/support/captured_log.h"
#include "tests/unit/worker/session/session_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::CapturedLog;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kBlocks = 6;

class PrefixSessionTest : public SessionFixture {
 protected:
  PrefixSessionTest() : session_(Parts(client_), ns_, kKv, Options()) {
    keys_ = session_.Keys(Tokens(kBlocks * 16));
    page_ = pool_->NewSequence();
    CAIRN_CHECK(page_.Reserve(kBlocks * 16).ok());
  }

  // No deadline is to pass because this machine is busy, but where a node hangs.
  static PrefixSession::Options Options(milliseconds deadline = seconds(60)) {
    PrefixSession::Options options;
    options.match_deadline = deadline;
    options.stall_deadline = deadline;
    return options;
  }

  PrefixSession::Dependencies Parts(client::CacheClient& client) {
    return {.client = client, .codec = *codec_, .clock = clock_, .executor = background_};
  }

  PrefixSession::Match Lookup() { return session_.Lookup(keys_, 0, "trace-1"); }
  PrefixFetch::Outcome FetchAll(PrefixSession::Match match) {
    return session_.Fetch(std::move(match), page_, {})->Finish();
  }
  TimePoint Now() const { return clock_.Now(); }

  ThreadPool background_{{.name = "fetch", .threads = 2}};
  PrefixSession session_;
  std::vector<BlockKey> keys_;
  KvSequence page_;
};

TEST_F(PrefixSessionTest, KeysAreOfFullBlocksAndChainFromTheFingerprint) {
  EXPECT_EQ(session_.Keys(Tokens(15)).size(), 0u);
  EXPECT_EQ(session_.Keys(Tokens(33)).size(), 2u);
  EXPECT_EQ(session_.fingerprint(), Fingerprint(spec_));
  NamespaceSpec other = spec_;
  other.numerics = "toy-2";
  PrefixSession other_session(Parts(client_), *CheckNamespace(other), kKv, Options());
  EXPECT_NE(other_session.Keys(Tokens(16))[0], session_.Keys(Tokens(16))[0]);
}

TEST_F(PrefixSessionTest, EmptyCacheIsAMissWithAReason) {
  const PrefixSession::Match match = Lookup();
  EXPECT_EQ(match.blocks, 0u);
  EXPECT_EQ(match.reason, MissReason::kAbsent);
  EXPECT_EQ(client_.leases(), 0u);
}

TEST_F(PrefixSessionTest, FetchBringsTheBytesThatWerePushed) {
  const auto stored = Store(keys_);
  PrefixSession::Match match = Lookup();
  ASSERT_EQ(match.blocks, kBlocks);
  EXPECT_EQ(match.reason, MissReason::kNone);
  const PrefixFetch::Outcome outcome = FetchAll(std::move(match));
  EXPECT_EQ(outcome.blocks, kBlocks);
  EXPECT_EQ(outcome.bytes.total(), kBlocks * kKv.page_bytes());
  for (int64_t b = 0; b < kBlocks; ++b) EXPECT_TRUE(SamePage(page_, *stored, b)) << "block " << b;
  EXPECT_EQ(client_.leases(), 0u);
}

TEST_F(PrefixSessionTest, PartsOfOtherShapesFillTheSamePage) {
  const auto source = Filled(1);
  // Two layer ranges x three heads, as six writers of another shape would push them.
  for (uint16_t layers = 0; layers < 2; ++layers) {
    for (uint16_t head = 0; head < 3; ++head) {
      const format::PartRect rect{static_cast<uint16_t>(layers * 2),
                                  static_cast<uint16_t>(layers * 2 + 2), head,
                                  static_cast<uint16_t>(head + 1)};
      const std::vector<uint64_t> lengths(2, 2 * kKv.head_bytes());
      std::vector<std::byte> part(format::PartBytes(lengths));
      std::byte* out = part.data() + format::HeaderBytes(2);
      for (int layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
        for (size_t plane = 0; plane < 2; ++plane) {
          const std::byte* from = source->LayerSlice(0, layer).data() + plane * kKv.plane_bytes() +
                                  head * kKv.head_bytes();
          std::memcpy(out, from, kKv.head_bytes());
          out += kKv.head_bytes();
        }
      }
      format::SealPart(part, format::Codec::kRaw, rect, 16, lengths);
      client::PartToPush push;
      push.key = keys_[0];
      push.rect = rect;
      push.bytes = part;
      const auto result = client_.Push(session_.fingerprint(), {&push, 1}, {});
      ASSERT_OK(result);
      ASSERT_OK(result->front());
    }
  }
  PrefixSession::Match match = Lookup();
  ASSERT_EQ(match.blocks, 1u);
  EXPECT_EQ(FetchAll(std::move(match)).blocks, 1u);
  EXPECT_TRUE(SamePage(page_, *source, 0));
}

TEST_F(PrefixSessionTest, NodeThatBreaksAnywhereLeavesAUsablePrefix) {
  const auto stored = Store(keys_);
  for (uint64_t n = 0; n < kBlocks * 4; ++n) {
    client_.SetFaults(Fault(&Faults::break_fetch_after, n));
    PrefixSession::Match match = Lookup();
    ASSERT_EQ(match.blocks, kBlocks);
    const PrefixFetch::Outcome outcome = FetchAll(std::move(match));
    EXPECT_LT(outcome.blocks, kBlocks) << n;
    EXPECT_NE(outcome.reason, MissReason::kNone) << n;
    for (int64_t b = 0; b < outcome.blocks; ++b) EXPECT_TRUE(SamePage(page_, *stored, b));
    EXPECT_EQ(client_.leases(), 0u);
  }
}

TEST_F(PrefixSessionTest, CorruptBlockEndsThePrefixBeforeIt) {
  Store(keys_);
  client_.SetFaults(Fault(&Faults::corrupt_block, 3));
  const PrefixFetch::Outcome outcome = FetchAll(Lookup());
  EXPECT_EQ(outcome.blocks, 3u);
  EXPECT_EQ(outcome.reason, MissReason::kCorrupt);
}

TEST_F(PrefixSessionTest, HangingFetchEndsByTheStallDeadline) {
  Store(keys_);
  client_.SetFaults(Fault(&Faults::hang_fetch_after, 5));
  PrefixSession::Options options = Options();
  options.stall_deadline = milliseconds(50);
  PrefixSession session(Parts(client_), ns_, kKv, options);
  std::unique_ptr<PrefixFetch> fetch = session.Fetch(session.Lookup(keys_, 0, ""), page_, {});
  EXPECT_FALSE(fetch->WaitLayer(3).ok());
  EXPECT_EQ(fetch->Finish().reason, MissReason::kDeadline);
  EXPECT_EQ(session.GetStats().abandoned_blocks, kBlocks);
}

// The estimate of a short recomputation does not end a fetch that may stall for longer: on a busy
// machine, it failed requests of tests that no node had failed.
TEST_F(PrefixSessionTest, AFetchMayTakeAsLongAsItMayStall) {
  Store(keys_);
  client_.SetFaults(Fault(&Faults::hang_fetch_after, 5));
  FakeClock clock;
  PrefixSession::Dependencies parts = Parts(client_);
  PrefixSession session(
      {.client = parts.client, .codec = parts.codec, .clock = clock, .executor = parts.executor},
      ns_, kKv, Options(seconds(60)));
  PrefixSession::FetchWanted wanted;
  wanted.prefill.Observe(0, kBlocks * 16, 0.01);
  std::unique_ptr<PrefixFetch> fetch = session.Fetch(session.Lookup(keys_, 0, ""), page_, wanted);
  EXPECT_FALSE(fetch->PollDone());
  clock.Advance(seconds(50));
  EXPECT_FALSE(fetch->PollDone());
  clock.Advance(seconds(61));
  EXPECT_TRUE(fetch->PollDone());
  EXPECT_EQ(fetch->Finish().reason, MissReason::kDeadline);
}

TEST_F(PrefixSessionTest, TheEndOfAFetchWakesTheEngine) {
  Store(keys_);
  Wakeup wakeup;
  PrefixSession::Dependencies parts = Parts(client_);
  PrefixSession session({.client = parts.client,
                         .codec = parts.codec,
                         .clock = parts.clock,
                         .executor = parts.executor,
                         .wakeup = &wakeup},
                        ns_, kKv, Options());
  uint64_t seen = wakeup.Now();
  std::unique_ptr<PrefixFetch> fetch = session.Fetch(session.Lookup(keys_, 0, ""), page_, {});
  while (!fetch->PollDone()) {
    ASSERT_TRUE(wakeup.WaitPast(seen, clock_, Now() + seconds(60)));
    seen = wakeup.Now();
  }
  EXPECT_EQ(fetch->Finish().blocks, kBlocks);
}

TEST_F(PrefixSessionTest, DroppedFetchStopsAndReleasesItsLease) {
  Store(keys_);
  client_.SetFaults(Fault(&Faults::hang_fetch_after, 2));
  session_.Fetch(Lookup(), page_, {}).reset();
  EXPECT_EQ(client_.leases(), 0u);
}

TEST_F(PrefixSessionTest, HangingNodeCostsTheMatchDeadlineOnly) {
  Store(keys_);
  PrefixSession::Options options;
  options.match_deadline = milliseconds(50);
  options.stall_deadline = std::chrono::hours(1);
  PrefixSession session(Parts(client_), ns_, kKv, options);
  client_.SetFaults(Fault(&Faults::hang, true));
  const TimePoint start = Now();
  const PrefixSession::Match match = session.Lookup(keys_, 0, "");
  EXPECT_EQ(match.blocks, 0u);
  EXPECT_EQ(match.reason, MissReason::kDeadline);
  EXPECT_LT(Now() - start, std::chrono::minutes(10));
}

TEST_F(PrefixSessionTest, NodeThatIsAwayIsAMiss) {
  client_.SetFaults(Fault(&Faults::every_call, Status(StatusCode::kUnavailable, "gone")));
  EXPECT_EQ(Lookup().reason, MissReason::kUnavailable);
}

TEST_F(PrefixSessionTest, NodeThatIsAwayAtTheStartIsFoundLater) {
  client::testing::InMemoryCacheClient client;
  client.SetFaults(Fault(&Faults::every_call, Status(StatusCode::kUnavailable, "gone")));
  PrefixSession session(Parts(client), ns_, kKv, Options());
  EXPECT_EQ(session.Lookup(keys_, 0, "").blocks, 0u);
  client.SetFaults({});
  // The second question finds the namespace, at the latest.
  const TimePoint deadline = Now() + std::chrono::seconds(60);
  PrefixSession::Match match = session.Lookup(keys_, 0, "");
  while (match.reason != MissReason::kAbsent && Now() < deadline) {
    match = session.Lookup(keys_, 0, "");
  }
  EXPECT_EQ(match.reason, MissReason::kAbsent);
}

// A changed setting looks like an empty cache. A neighbour does not.
TEST_F(PrefixSessionTest, WarnsOfANamespaceThatDiffersOnlyWhileItsOwnIsEmpty) {
  NamespaceSpec other = spec_;
  other.numerics = "toy-2";
  const auto logged = [&](const NamespaceSpec& spec) {
    CapturedLog captured;
    PrefixSession session(Parts(client_), *CheckNamespace(spec), kKv, Options());
    session.Lookup(session.Keys(Tokens(kBlocks * 16)), 0, "");
    return captured.Take();
  };
  EXPECT_EQ(logged(other), "") << "neither has blocks";
  Store(keys_);
  EXPECT_EQ(logged(spec_), "") << "it has what it stored";
  EXPECT_THAT(logged(other), AllOf(HasSubstr("cache_namespace_differs"), HasSubstr("stored=toy-1"),
                                   HasSubstr("requested=toy-2 stored_blocks=6")));
  PushQueue push(client_, other.layout, clock_, {});
  const auto keys = BlockKeyChain(Fingerprint(other)).Keys(Tokens(kBlocks * 16), 16);
  push.Enqueue(Fingerprint(other), *codec_, Blocks(Filled(kBlocks), keys));
  PushAll(push);
  EXPECT_EQ(logged(other), "");
  EXPECT_EQ(logged(spec_), "");
  NamespaceSpec third = spec_;
  third.numerics = "toy-3";
  EXPECT_THAT(logged(third), HasSubstr("stored=toy-1 requested=toy-3")) << "new to the node";
}

TEST_F(PrefixSessionTest, MissedBlocksAreCountedByReason) {
  session_.CountMissed(MissReason::kEvicted, 4);
  session_.CountMissed(MissReason::kEvicted, 1);
  EXPECT_EQ(session_.GetStats().missed_blocks[static_cast<size_t>(MissReason::kEvicted)], 5u);
}

}  // namespace
}  // namespace cairn::worker
