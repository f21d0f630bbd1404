// One session without sockets and threads: what it answers, what it holds, and what hostile
// descriptors do.
#include <random>

#include "services/cache/store/state/namespace_registry.h"
#include "tests/unit/cache/serve/local/local_session_fixture.h"

namespace cairn::cache::testing {
namespace {

using shm::Op;
using shm::PlaceState;
using ::testing::_;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(LocalServerSessionTest, WritesInPlaceAndReadsInPlace) {
  Client client(this, "a");
  for (uint64_t n = 1; n <= 5; ++n) {
    ASSERT_EQ(
        client.call->Put(client.segments, a_, n, n == 1 ? std::nullopt : std::optional(n - 1)),
        kOk);
  }
  const auto keys = TestKeys(1, 6);
  const shm::Submission s = client.call->MatchCall(a_, keys);
  const shm::Completion done = client.call->Call(s);
  ASSERT_EQ(done.code, kOk);
  EXPECT_EQ(done.matched, 5u);
  EXPECT_EQ(done.located, 5u);
  EXPECT_EQ(done.miss_reason, static_cast<uint8_t>(MissReason::kAbsent));
  const auto places = client.call->Output<shm::PlaceEntry>(s, done);
  ASSERT_EQ(places.size(), 5u);
  for (uint64_t n = 1; n <= 5; ++n) {
    ExpectBlock(client, places[n - 1], n);
    EXPECT_EQ(places[n - 1].flags, shm::kLent);
  }
  EXPECT_EQ(client.session->held_bytes(), done.bytes);
  client.call->Release(done.lease);
  EXPECT_EQ(client.session->held_bytes(), 0u);
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

// A match over pools, and then the places of what it leased.
TEST_F(LocalServerSessionTest, AMatchOverPoolsIsReadInPlace) {
  Client client(this, "a");
  NamespaceSpec spec = TestSpec();
  spec.tenant = "a";
  spec.layout.form =
      OpaqueLayout{.description = "engine",
                   .pools = {{"full", 16, 1, 1000, true}, {"state", 32, 2, 500, false}}};
  const Fingerprint pooled = node_.engine->OpenNamespace(spec, false)->fingerprint;
  const auto units = TestKeys(1, 5);
  const auto store = [&](uint32_t pool, const BlockKey& key, uint16_t part) {
    ReservePartRequest request;
    request.key = PoolKey(key, pool);
    request.part = {static_cast<uint16_t>(pool), static_cast<uint16_t>(pool + 1), part,
                    static_cast<uint16_t>(part + 1)};
    const std::vector<uint64_t> lengths = {spec.layout.MaxPartBytesOf(pool)};
    std::vector<std::byte> bytes(format::PartBytes(lengths), std::byte{9});
    format::SealPart(bytes, format::Codec::kOpaque, request.part,
                     static_cast<uint16_t>(spec.layout.BlockTokensOf(pool)), lengths);
    request.bytes = bytes.size();
    const ReservationId id =
        *(*node_.engine->Reserve(client.id, pooled, {&request, 1}, Duration(0)))[0];
    ASSERT_OK(node_.engine->Write(client.id, id, 0, bytes));
    ASSERT_OK((*node_.engine->Commit(client.id, {&id, 1}, ""))[0]);
  };
  for (const BlockKey& key : units) store(0, key, 0);
  for (const uint16_t part : {uint16_t{0}, uint16_t{1}}) store(1, units[3], part);

  shm::PoolQuestion question{.step_tokens = 32, .pools = 2, .all = 1};
  question.entries[1] = {.pool = 1, .tail_tokens = 1};
  const shm::Submission s = client.call->MatchPoolsCall(pooled, question, units);
  const shm::Completion done = client.call->Call(s);
  ASSERT_EQ(done.code, kOk) << client.call->Text(s, done);
  const auto answer = shm::DecodeAnswer(client.call->Output<std::byte>(s, done), done.matched);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->restorable_tokens, 64u);
  EXPECT_THAT(answer->pool_runs, ElementsAre(PoolRun{0, 0, 4}, PoolRun{1, 1, 1}));
  EXPECT_EQ(answer->restorable, std::string("\x02", 1));
  EXPECT_EQ(client.session->held_bytes(), done.bytes);

  const shm::Submission locate = client.call->WithLease(Op::kLocate, done.lease);
  const shm::Completion located = client.call->Call(locate);
  ASSERT_EQ(located.code, kOk);
  EXPECT_EQ(located.located, 5u);
  const auto places = client.call->Output<shm::PlaceEntry>(locate, located);
  ASSERT_EQ(places.size(), 4u + 2);
  EXPECT_EQ(places[3].layer_begin, 0);
  EXPECT_EQ(places[5].layer_begin, 1);
  EXPECT_EQ(places[5].head_begin, 1);
  client.call->Release(done.lease);
  EXPECT_EQ(client.session->held_bytes(), 0u);

  question.entries[1].pool = 2;
  const shm::Submission bad = client.call->MatchPoolsCall(pooled, question, units);
  const shm::Completion refused = client.call->Call(bad);
  EXPECT_EQ(refused.code, Code(StatusCode::kInvalidArgument));
  EXPECT_THAT(client.call->Text(bad, refused), HasSubstr("'pools[1].pool': got 2"));
  question.entries[1].pool = 1;
  shm::Submission narrow = client.call->MatchPoolsCall(pooled, question, units);
  narrow.output.bytes = sizeof(shm::PoolAnswer);
  EXPECT_EQ(client.call->Call(narrow).code, Code(StatusCode::kInvalidArgument));
  EXPECT_EQ(client.session->held_bytes(), 0u) << "its lease went back";
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

TEST_F(LocalServerSessionTest, ReadersCannotWriteWhatCameOverTheNetwork) {
  Client client(this, "a");
  node_.Store(client.id, a_, 1, std::nullopt);
  const BlockKey key = TestKey(1);
  const shm::Submission s = client.call->MatchCall(a_, {&key, 1});
  const shm::Completion done = client.call->Call(s);
  const auto places = client.call->Output<shm::PlaceEntry>(s, done);
  ASSERT_EQ(places.size(), 1u);
  ExpectBlock(client, places[0], 1);
  EXPECT_EQ(places[0].flags, 0);
  const auto& segment = client.segments.segments.at(places[0].segment);
  EXPECT_FALSE(segment.writable);
  EXPECT_EQ(mmap(nullptr, segment.bytes, PROT_WRITE, MAP_SHARED, segment.fd, 0), MAP_FAILED);
}

TEST_F(LocalServerSessionTest, BlocksFromBeforeTheFirstLocalSessionAreElsewhere) {
  const SessionId network = *node_.engine->OpenSession("network");
  node_.Store(network, a_, 1, std::nullopt);
  node_.Store(network, b_, 1, std::nullopt);
  Client client(this, "a");
  EXPECT_TRUE(client.segments.segments.empty());
  const BlockKey key = TestKey(1);
  const shm::Submission s = client.call->MatchCall(a_, {&key, 1});
  const shm::Completion done = client.call->Call(s);
  EXPECT_EQ(done.matched, 1u);
  const auto places = client.call->Output<shm::PlaceEntry>(s, done);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].state, static_cast<uint8_t>(PlaceState::kElsewhere));
  EXPECT_EQ(places[0].segment, 0u);
  EXPECT_TRUE(client.segments.segments.empty()) << "the tenants' bytes lie together there";
  client.call->Release(done.lease);
}

TEST_F(LocalServerSessionTest, AnotherTenantsNamespaceIsNotThere) {
  Client client(this, "a");
  const BlockKey key = TestKey(1);
  for (const Op op : {Op::kMatch, Op::kExists}) {
    const shm::Submission s = client.call->WithKeys(op, b_, {&key, 1});
    const shm::Completion done = client.call->Call(s);
    EXPECT_EQ(done.code, Code(StatusCode::kNotFound));
    EXPECT_EQ(client.call->Text(s, done), Message(NoNamespace(b_)));
  }
  EXPECT_EQ(client.call->Reserve(b_, 1, std::nullopt).code, Code(StatusCode::kNotFound));
  EXPECT_TRUE(client.serves);
}

// Blocks that lie in memory which its tenant's writers can write are elsewhere for it.
TEST_F(LocalServerSessionTest, AReaderMapsNoMemoryThatCanBeWritten) {
  Client writer(this, "a");
  ASSERT_EQ(writer.call->Reserve(a_, 1, std::nullopt).code, Code(StatusCode::kOk));
  EXPECT_FALSE(writer.segments.segments.empty());
  Client reader(this, "a", 64 << 20, 256 << 10, /*may_write=*/false);
  EXPECT_TRUE(reader.segments.segments.empty());
}

// Else a reader's session over gRPC would be a way around its role.
TEST_F(LocalServerSessionTest, AReaderReservesNothing) {
  Client client(this, "a", 64 << 20, 256 << 10, /*may_write=*/false);
  EXPECT_EQ(client.call->Reserve(a_, 1, std::nullopt).code, Code(StatusCode::kPermissionDenied));
  const BlockKey key = TestKey(1);
  EXPECT_EQ(client.call->Call(client.call->MatchCall(a_, {&key, 1})).code, Code(StatusCode::kOk));
}

TEST_F(LocalServerSessionTest, LeasesOfOthersAreNotItsOwn) {
  Client one(this, "a"), other(this, "a");
  ASSERT_EQ(one.call->Put(one.segments, a_, 1, std::nullopt), kOk);
  const BlockKey key = TestKey(1);
  const shm::Completion match = one.call->Call(one.call->MatchCall(a_, {&key, 1}));
  ASSERT_NE(match.lease, 0u);
  EXPECT_EQ(other.call->Call(other.call->WithLease(Op::kLocate, match.lease)).code,
            Code(StatusCode::kNotFound));
  EXPECT_EQ(other.call->Call(other.call->WithLease(Op::kReport, match.lease)).code,
            Code(StatusCode::kNotFound));
  EXPECT_EQ(other.call->Call(other.call->WithLease(Op::kRenew, match.lease)).code,
            Code(StatusCode::kNotFound));
  other.call->Release(match.lease);
  EXPECT_EQ(one.call->Call(one.call->WithLease(Op::kRenew, match.lease)).code, kOk);
  const shm::Grant grant = one.call->Reserve(a_, 2, 1);
  ASSERT_EQ(grant.code, kOk);
  EXPECT_EQ(other.call->Commit(grant.reservation), Code(StatusCode::kNotFound));
  EXPECT_EQ(other.call->Call(other.call->WithIds(Op::kAbort, {&grant.reservation, 1})).code, kOk);
  EXPECT_EQ(node_.engine->GetStats().reservations, 1u);
}

TEST_F(LocalServerSessionTest, APartWhoseHeaderIsDamagedIsNotCommitted) {
  Client client(this, "a");
  EXPECT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt, /*damage=*/32),
            Code(StatusCode::kDataLoss));
  EXPECT_EQ(node_.engine->GetStats().blocks, 0u);
  EXPECT_EQ(client.session->held_bytes(), 0u);
  EXPECT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk)
      << "the part can be written again";
}

// Readers hash what is lent; the first one's report makes it a miss.
TEST_F(LocalServerSessionTest, DamagedSlicesGoWhenAReaderReportsThem) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt, /*damage=*/SIZE_MAX), kOk);
  const BlockKey key = TestKey(1);
  const shm::Completion match = client.call->Call(client.call->MatchCall(a_, {&key, 1}));
  ASSERT_EQ(match.matched, 1u);
  ASSERT_EQ(client.call->Call(client.call->WithLease(Op::kReport, match.lease, 0)).code, kOk);
  EXPECT_EQ(node_.engine->GetStats().corrupt_blocks, 1u);
  EXPECT_EQ(client.call->Call(client.call->MatchCall(a_, {&key, 1})).matched, 0u);
  client.call->Release(match.lease);
  EXPECT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk)
      << "the part can be written again";
}

TEST_F(LocalServerSessionTest, AWriterThatScribblesLaterMakesAMiss) {
  Client client(this, "a");
  const shm::Grant grant = client.call->Reserve(a_, 1, std::nullopt);
  const Layout layout = TestSpec().layout;
  const auto bytes = TestPart(layout, 1, layout.WholeRect());
  const auto room = client.segments.At(grant.segment, grant.offset, bytes.size());
  std::memcpy(room.data(), bytes.data(), bytes.size());
  ASSERT_EQ(client.call->Commit(grant.reservation), kOk);
  const BlockKey key = TestKey(1);
  const shm::Completion match = client.call->Call(client.call->MatchCall(a_, {&key, 1}));
  ASSERT_EQ(match.matched, 1u);
  // A report of good bytes changes nothing.
  ASSERT_EQ(client.call->Call(client.call->WithLease(Op::kReport, match.lease, 0)).code, kOk);
  EXPECT_EQ(node_.engine->GetStats().corrupt_blocks, 0u);
  for (const size_t at : {size_t{3}, bytes.size() / 2}) {
    SCOPED_TRACE(at);
    room[at] ^= std::byte{0xff};
    ASSERT_EQ(client.call->Call(client.call->WithLease(Op::kReport, match.lease, 0)).code, kOk);
  }
  EXPECT_EQ(node_.engine->GetStats().corrupt_blocks, 1u);
  const shm::Completion again = client.call->Call(client.call->MatchCall(a_, {&key, 1}));
  EXPECT_EQ(again.matched, 0u);
  EXPECT_EQ(again.miss_reason, static_cast<uint8_t>(MissReason::kCorrupt));
  client.call->Release(match.lease);
}

// The commit looks at headers only. Blocks that go to disk are verified first, as a copy.
TEST_F(LocalServerSessionTest, WhatAWriterSpoiledDoesNotGoToDisk) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
  ASSERT_EQ(client.call->Put(client.segments, a_, 2, 1, /*damage=*/SIZE_MAX), kOk);
  clock_.Advance(std::chrono::seconds(2));
  node_.engine->Tick();
  node_.executor.RunAll();
  const EngineStats stats = node_.engine->GetStats();
  EXPECT_EQ(stats.corrupt_blocks, 1u);
  EXPECT_EQ(disk_->GetStats().extents, 1u);
  const shm::Completion match = client.call->Call(client.call->MatchCall(a_, TestKeys(1, 2)));
  EXPECT_EQ(match.matched, 1u);
  client.call->Release(match.lease);
}

TEST_F(LocalServerSessionTest, LeasesAndReservationsHaveNoDeadlineButEndWithTheSession) {
  auto client = std::make_unique<Client>(this, "a");
  ASSERT_EQ(client->call->Put(client->segments, a_, 1, std::nullopt), kOk);
  const BlockKey key = TestKey(1);
  ASSERT_NE(client->call->Call(client->call->MatchCall(a_, {&key, 1})).lease, 0u);
  ASSERT_EQ(client->call->Reserve(a_, 2, 1).code, kOk);
  clock_.Advance(std::chrono::hours(24));
  node_.engine->Tick();
  EXPECT_EQ(node_.engine->GetStats().leases, 1u);
  EXPECT_EQ(node_.engine->GetStats().reservations, 1u);
  EXPECT_GT(stats_.held_bytes.load(), 0u);
  client.reset();
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
  EXPECT_EQ(node_.engine->GetStats().reservations, 0u);
  EXPECT_EQ(node_.engine->GetStats().reserved_bytes, 0u);
  EXPECT_EQ(stats_.held_bytes.load(), 0u);
}

TEST_F(LocalServerSessionTest, DroppedNamespaceStaysReadableUntilTheLeaseIsReleased) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
  const BlockKey key = TestKey(1);
  const shm::Submission s = client.call->MatchCall(a_, {&key, 1});
  const shm::Completion match = client.call->Call(s);
  const auto place = client.call->Output<shm::PlaceEntry>(s, match).at(0);
  const shm::Grant grant = client.call->Reserve(a_, 2, 1);
  ASSERT_EQ(grant.code, kOk);
  ASSERT_OK(node_.engine->DropNamespace(a_));
  node_.executor.RunAll();
  // Room that was taken now does not lie where the reader reads or the writer writes.
  const Fingerprint again = node_.Open("a");
  for (uint64_t n = 10; n < 100; ++n) {
    const shm::Grant other = client.call->Reserve(again, n, std::nullopt);
    if (other.code != kOk) break;
    EXPECT_FALSE(other.segment == place.segment && other.offset == place.offset);
    EXPECT_FALSE(other.segment == grant.segment && other.offset == grant.offset);
  }
  ExpectBlock(client, place, 1);
  EXPECT_NE(client.call->Commit(grant.reservation), kOk);
  client.call->Release(match.lease);
}

TEST_F(LocalServerSessionTest, QuotaBoundsWhatASessionHolds) {
  const uint64_t block = TestPart(TestSpec().layout, 1, TestSpec().layout.WholeRect()).size();
  Client client(this, "a", 4 * HostRoom(block));
  std::vector<uint64_t> reserved;
  for (uint64_t n = 1; n <= 2; ++n) {
    const shm::Grant grant = client.call->Reserve(a_, n, std::nullopt);
    ASSERT_EQ(grant.code, kOk);
    reserved.push_back(grant.reservation);
  }
  EXPECT_EQ(client.call->Reserve(a_, 3, std::nullopt).code, Code(StatusCode::kResourceExhausted))
      << "half is for leases";
  EXPECT_EQ(client.call->Call(client.call->WithIds(Op::kAbort, reserved)).code, kOk);
  for (uint64_t n = 1; n <= 5; ++n)
    node_.Store(client.id, a_, n, n == 1 ? std::nullopt : std::optional(n - 1));
  EXPECT_EQ(client.call->Call(client.call->MatchCall(a_, TestKeys(1, 5))).code,
            Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
  const shm::Completion four = client.call->Call(client.call->MatchCall(a_, TestKeys(1, 4)));
  EXPECT_EQ(four.code, kOk);
  const BlockKey key = TestKey(1);
  EXPECT_EQ(client.call->Call(client.call->MatchCall(a_, {&key, 1})).code,
            Code(StatusCode::kResourceExhausted));
  client.call->Release(four.lease);
  EXPECT_EQ(client.call->Call(client.call->MatchCall(a_, {&key, 1})).code, kOk);
}

TEST_F(LocalServerSessionTest, LocateWaitsForBlocksFromDisk) {
  Client client(this, "a");
  PutOnDiskOnly(client);
  const shm::Submission s = client.call->MatchCall(a_, TestKeys(1, 3));
  const shm::Completion match = client.call->Call(s);
  ASSERT_EQ(match.matched, 3u);
  const auto first = client.call->Output<shm::PlaceEntry>(s, match);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].state, static_cast<uint8_t>(PlaceState::kPending));
  EXPECT_EQ(first[0].tier, 2);
  EXPECT_THAT(times_.answers, ::testing::Contains(std::pair(Op::kMatch, Duration(0))));
  times_.answers.clear();

  shm::Submission locate = client.call->WithLease(Op::kLocate, match.lease);
  locate.argument = 10'000;
  ASSERT_TRUE(client.call->ring().Submit(locate));
  Status why;
  ASSERT_TRUE(client.session->Serve(8, &why));
  ASSERT_TRUE(client.session->has_waiting());
  clock_.Advance(std::chrono::milliseconds(1));
  client.session->RetryWaiting();
  ASSERT_TRUE(client.session->has_waiting()) << "nothing has run yet";
  node_.executor.RunAll();
  clock_.Advance(std::chrono::milliseconds(1));
  client.session->RetryWaiting();
  ASSERT_FALSE(client.session->has_waiting());
  EXPECT_THAT(times_.answers, ::testing::ElementsAre(
                                  std::pair(Op::kLocate, Duration(std::chrono::milliseconds(2)))));
  const shm::Completion done = client.call->Wait(locate);
  ASSERT_EQ(done.code, kOk);
  const auto places = client.call->Output<shm::PlaceEntry>(locate, done);
  ASSERT_EQ(places.size(), 3u);
  for (uint64_t n = 1; n <= 3; ++n) {
    ExpectBlock(client, places[n - 1], n);
    EXPECT_EQ(places[n - 1].tier, 2);
  }
  client.call->Release(match.lease);
}

TEST_F(LocalServerSessionTest, ABlockThatIsToldTwiceIsReadOnce) {
  Client client(this, "a");
  PutOnDiskOnly(client);
  const BlockKey first = TestKey(1);
  // The first one is in memory when the others are asked for.
  const shm::Completion one = client.call->Call(client.call->MatchCall(a_, {&first, 1}));
  ASSERT_EQ(one.matched, 1u);
  node_.executor.RunAll();
  const uint64_t before = stats_.read_bytes;
  const shm::Completion match = client.call->Call(client.call->MatchCall(a_, TestKeys(1, 3)));
  ASSERT_EQ(match.matched, 3u);
  const shm::Submission locate = client.call->WithLease(Op::kLocate, match.lease);
  const auto count_here = [&] {
    const shm::Completion done = client.call->Call(locate);
    EXPECT_EQ(done.code, kOk);
    const auto places = client.call->Output<shm::PlaceEntry>(locate, done);
    return std::ranges::count(places, static_cast<uint8_t>(PlaceState::kHere),
                              &shm::PlaceEntry::state);
  };
  // As by a client that still waits for the others.
  for (int i = 0; i < 3; ++i) ASSERT_EQ(count_here(), 1);
  node_.executor.RunAll();
  ASSERT_EQ(count_here(), 3);
  const uint64_t each = TestPart(TestSpec().layout, 1, TestSpec().layout.WholeRect()).size();
  EXPECT_EQ(stats_.read_bytes - before, 3 * each);
  client.call->Release(match.lease);
  client.call->Release(one.lease);
}

// A client whose blocks never come costs the node some looks, not a look at each turn of its loop.
TEST_F(LocalServerSessionTest, ABlockThatNeverComesIsLookedForAHundredTimesAMinute) {
  Client client(this, "a");
  PutOnDiskOnly(client);
  const shm::Completion match = client.call->Call(client.call->MatchCall(a_, TestKeys(1, 3)));
  ASSERT_EQ(match.matched, 3u);
  shm::Submission locate = client.call->WithLease(Op::kLocate, match.lease);
  locate.argument = 60'000;
  Status why;
  for (int i = 0; i < 8; ++i) {
    locate.cookie = 100 + static_cast<uint64_t>(i);
    ASSERT_TRUE(client.call->ring().Submit(locate));
  }
  ASSERT_TRUE(client.session->Serve(8, &why));
  size_t looks = 0, first_second = 0;
  const TimePoint start = clock_.Now();
  while (client.session->has_waiting()) {
    // As often as the server's thread comes by.
    clock_.Advance(std::chrono::microseconds(100));
    const size_t now = client.session->RetryWaiting(/*max=*/3);
    ASSERT_LE(now, 3u);
    looks += now;
    if (clock_.Now() - start <= std::chrono::seconds(1)) first_second = looks;
    ASSERT_LE(clock_.Now() - start, std::chrono::seconds(61));
  }
  EXPECT_GE(clock_.Now() - start, std::chrono::seconds(60));
  EXPECT_LE(looks, 8 * 120u);
  EXPECT_GE(first_second, 8 * 20u) << "a block that comes soon is seen soon";
  EXPECT_EQ(client.session->next_look(), TimePoint::max());
}

// Bytes stay where a place says only as long as they are pinned, and nobody can take them away from
// a reader in another process. So a lease that ends by its deadline gives no places.
TEST_F(LocalServerSessionTest, ALeaseWithADeadlineGivesNoPlaces) {
  Client client(this, "a");
  node_.Store(client.id, a_, 1, std::nullopt);
  const BlockKey key = TestKey(1);
  const auto match = node_.engine->Match(
      {.session = client.id, .fingerprint = a_, .keys = {&key, 1}, .lease = true, .trace = {}});
  ASSERT_OK(match);
  ASSERT_TRUE(match->lease);
  for (const Op op : {Op::kLocate, Op::kReport, Op::kRenew}) {
    const shm::Submission s =
        client.call->WithLease(op, *match->lease, 0, op == Op::kRenew ? 0 : 1);
    const shm::Completion done = client.call->Call(s);
    EXPECT_EQ(done.code, Code(StatusCode::kNotFound));
    EXPECT_THAT(client.call->Text(s, done), HasSubstr("'lease'"));
  }
  EXPECT_TRUE(client.serves);
}

TEST_F(LocalServerSessionTest, LocateWaitsNoLongerThanItWasTold) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
  const BlockKey key = TestKey(1);
  const shm::Completion match = client.call->Call(client.call->MatchCall(a_, {&key, 1}));
  // A range that has no blocks, and one that is no range.
  EXPECT_EQ(client.call->Call(client.call->WithLease(Op::kLocate, match.lease, 1, 1)).located, 0u);
  EXPECT_EQ(client.call->Call(client.call->WithLease(Op::kLocate, match.lease, 0, 9)).code,
            Code(StatusCode::kInvalidArgument));
  EXPECT_EQ(client.call->Call(client.call->WithLease(Op::kLocate, match.lease, 9, 9)).code,
            Code(StatusCode::kInvalidArgument));
  client.call->Release(match.lease);
}

TEST_F(LocalServerSessionTest, PlacesEndAtTheRoomForThem) {
  Client client(this, "a");
  for (uint64_t n = 1; n <= 4; ++n) {
    ASSERT_EQ(
        client.call->Put(client.segments, a_, n, n == 1 ? std::nullopt : std::optional(n - 1)),
        kOk);
  }
  shm::Submission s = client.call->MatchCall(a_, TestKeys(1, 4));
  s.output.bytes = 2 * sizeof(shm::PlaceEntry) + 8;
  const shm::Completion match = client.call->Call(s);
  EXPECT_EQ(match.matched, 4u);
  EXPECT_EQ(match.count, 2u);
  EXPECT_EQ(match.located, 2u);
  const shm::Submission rest = client.call->WithLease(Op::kLocate, match.lease, 2);
  const shm::Completion done = client.call->Call(rest);
  const auto places = client.call->Output<shm::PlaceEntry>(rest, done);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0].block, 2u);
  EXPECT_EQ(done.located, 2u);
  client.call->Release(match.lease);
}

TEST_F(LocalServerSessionTest, ExistsAnswersOneBytePerKey) {
  Client client(this, "a");
  for (uint64_t n = 1; n <= 3; ++n) {
    ASSERT_EQ(
        client.call->Put(client.segments, a_, n, n == 1 ? std::nullopt : std::optional(n - 1)),
        kOk);
  }
  const std::vector<BlockKey> keys = {TestKey(2), TestKey(3), TestKey(9), TestKey(1), TestKey(2)};
  const shm::Submission s = client.call->WithKeys(Op::kExists, a_, keys);
  const shm::Completion done = client.call->Call(s);
  EXPECT_THAT(client.call->Output<uint8_t>(s, done), ElementsAre(1, 1, 0, 1, 1));
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

TEST_F(LocalServerSessionTest, AClientThatReadsNoSocketGetsNoGrantsAndPlacesElsewhere) {
  Client client(this, "a");
  client.segments.refuse = true;
  EXPECT_EQ(client.call->Reserve(a_, 1, std::nullopt).code, Code(StatusCode::kResourceExhausted));
  EXPECT_EQ(node_.engine->GetStats().reservations, 0u);
  node_.Store(client.id, a_, 1, std::nullopt);
  const BlockKey key = TestKey(1);
  const shm::Submission s = client.call->MatchCall(a_, {&key, 1});
  const shm::Completion match = client.call->Call(s);
  EXPECT_EQ(client.call->Output<shm::PlaceEntry>(s, match).at(0).state,
            static_cast<uint8_t>(PlaceState::kElsewhere));
  client.call->Release(match.lease);
}

TEST_F(LocalServerSessionTest, NonsenseEndsTheSessionOnly) {
  Client good(this, "a");
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    Client bad(this, "a");
    shm::Submission s = bad.call->MatchCall(a_, TestKeys(1, 2));
    if (kind == 0) s.op = 200;
    if (kind == 1) s.input.offset = 0xfffffff8;
    if (kind == 2) s.output = {8, 0xffffffff};
    if (kind == 3) {
      bad.header->submission_tail.store(1'000'000);
    } else {
      ASSERT_TRUE(bad.call->ring().Submit(s));
    }
    Status why;
    EXPECT_FALSE(bad.session->Serve(8, &why));
    EXPECT_THAT(Message(why), HasSubstr("ring"));
  }
  EXPECT_EQ(good.call->Put(good.segments, a_, 1, std::nullopt), kOk);
}

TEST_F(LocalServerSessionTest, RandomDescriptorsHarmNobody) {
  Client good(this, "a");
  for (uint64_t n = 1; n <= 4; ++n) {
    ASSERT_EQ(good.call->Put(good.segments, a_, n, n == 1 ? std::nullopt : std::optional(n - 1)),
              kOk);
  }
  std::mt19937_64 random(7);
  int served = 0;
  for (int round = 0; round < 300; ++round) {
    Client bad(this, "a", 1 << 20);
    for (int i = 0; i < 20; ++i) {
      // The scratch holds keys, ids and noise; the descriptor is nearly right.
      for (size_t at = 0; at < 4096; at += 8) {
        const uint64_t word = random() >> (random() % 64);
        std::memcpy(bad.call->ring().scratch().data() + at, &word, 8);
      }
      const auto op = static_cast<Op>(1 + random() % shm::kLastOp);
      shm::Submission s =
          bad.call->WithLease(op, random() % 8, static_cast<uint32_t>(random() % 4));
      if (op == Op::kMatch || op == Op::kExists || op == Op::kReserve) {
        std::memcpy(s.body, a_.bytes.data(), 32);
      }
      if (random() % 2 == 0) {
        const auto known = TestKeys(1, 4);
        std::memcpy(bad.call->ring().scratch().data(), known.data(), known.size() * 32);
      }
      const bool keys = op == Op::kMatch || op == Op::kExists;
      const bool ids = op == Op::kRelease || op == Op::kCommit || op == Op::kAbort;
      const uint32_t entry = keys                 ? 32
                             : ids                ? 8
                             : op == Op::kReserve ? sizeof(shm::ReserveEntry)
                                                  : 0;
      s.input = {static_cast<uint32_t>(random() % 8 * 8),
                 static_cast<uint32_t>(random() % 8) * entry};
      s.output = {4096, static_cast<uint32_t>(64 + random() % 4096)};
      if (op == Op::kMatch) s.flags = static_cast<uint8_t>(random() % 4);
      bad.call->ring().Submit(s);
      Status why;
      if (!bad.session->Serve(8, &why)) break;
      ++served;
      shm::Completion done;
      while (bad.call->ring().ReapOne(&done) == shm::ClientRing::Reap::kOne) {
      }
    }
    EXPECT_LE(bad.session->held_bytes(), uint64_t{1} << 20);
  }
  EXPECT_GT(served, 300);
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
  EXPECT_EQ(node_.engine->GetStats().reservations, 0u);
  const shm::Submission s = good.call->MatchCall(a_, TestKeys(1, 4));
  const shm::Completion match = good.call->Call(s);
  EXPECT_EQ(match.matched, 4u);
  const auto places = good.call->Output<shm::PlaceEntry>(s, match);
  for (uint64_t n = 1; n <= 4; ++n) ExpectBlock(good, places[n - 1], n);
  good.call->Release(match.lease);
}

}  // namespace
}  // namespace cairn::cache::testing
