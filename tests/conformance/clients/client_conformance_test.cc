// What every CacheClient promises: in memory, over a node's engine in the same process, over gRPC,
// and over a same-node session, the last two with a real node.
#include <atomic>
#include <memory>
#include <thread>

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/clients/sink.h"
#include "tests/conformance/clients/worlds.h"
#include "tests/unit/clients/cpp/patient_calls.h"

namespace cairn::client {
namespace {

using cairn::testing::StatusIs;
using client::testing::Chain;
using client::testing::kCall;
using client::testing::KeysFor;
using client::testing::kFetch;
using client::testing::kMatch;
using client::testing::kPush;
using client::testing::LargeSpec;
using client::testing::SmallSpec;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::_;
using ::testing::HasSubstr;

constexpr Sink::Wish kWishes[] = {Sink::Wish::kOwnBuffer, Sink::Wish::kDestination,
                                  Sink::Wish::kPieces, Sink::Wish::kLent};

// The blocks of `chain` as they would be written in place.
std::vector<PartToWrite> ToWrite(const Chain& chain) {
  std::vector<PartToWrite> parts;
  for (const PartToPush& part : chain.parts) {
    parts.push_back({.key = part.key,
                     .parent = part.parent,
                     .first_position = part.first_position,
                     .rect = part.rect,
                     .bytes = part.bytes.size()});
  }
  return parts;
}

template <typename WorldType>
class ClientConformance : public ::testing::Test {
 protected:
  void Store(CacheClient& client, const NamespaceSpec& spec, const Chain& chain) {
    client::testing::Store(client, spec, chain);
  }
  // Every slice of the chain, once and right.
  void ExpectAll(CacheClient& client, const NamespaceSpec& spec, const Chain& chain,
                 Sink::Wish wish, const FetchOptions& options = kFetch) {
    auto match = client.Match(Fingerprint(spec), chain.keys, kMatch);
    ASSERT_OK(match);
    ASSERT_EQ(match->matched_blocks, chain.keys.size());
    Sink sink(spec, chain.keys, wish);
    ASSERT_OK(client.Fetch(match->lease, {}, sink, options));
    size_t slices = 0;
    for (const PartToPush& part : chain.parts)
      slices += part.rect.layer_end - part.rect.layer_begin;
    EXPECT_EQ(sink.slices, slices);
    EXPECT_EQ(sink.wrong, 0u);
    EXPECT_EQ(sink.twice, 0u);
    EXPECT_TRUE(sink.failed.empty());
  }
  // Stat, until it is as wanted or a minute has passed.
  template <typename Condition>
  bool StatBecomes(CacheClient& client, Condition condition) {
    const auto until = steady_clock::now() + seconds(60);
    while (steady_clock::now() < until) {
      const auto stat = client.Stat(kCall);
      if (stat.ok() && condition(*stat)) return true;
      std::this_thread::yield();
    }
    return false;
  }

  WorldType world_;
  const std::shared_ptr<CacheClient> client_ = world_.Client();
};

TYPED_TEST_SUITE(ClientConformance, Worlds, WorldNames);

TYPED_TEST(ClientConformance, WhatIsPushedIsFetchedInEveryWay) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 12);
  this->Store(*this->client_, spec, chain);
  for (const auto wish : kWishes) {
    this->ExpectAll(*this->client_, spec, chain, wish);
    this->ExpectAll(*this->client_, spec, chain, wish, {.verify = false});
  }
}

TYPED_TEST(ClientConformance, WhoCreatesANamespaceIsTold) {
  const NamespaceSpec spec = SmallSpec();
  // A client that has not connected yet, so that its session may open what is asked for before the
  // call does.
  const auto first = this->world_.Client()->OpenNamespace(spec, kCall);
  ASSERT_OK(first);
  EXPECT_TRUE(first->created);
  const auto second = this->world_.Client()->OpenNamespace(spec, kCall);
  ASSERT_OK(second);
  EXPECT_FALSE(second->created);
}

TYPED_TEST(ClientConformance, ARecipeThatCannotStoreTheLayoutIsRefused) {
  NamespaceSpec spec = SmallSpec();
  spec.recipe = "int8:group=16";
  EXPECT_THAT(this->client_->OpenNamespace(spec, kCall).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'recipe'")));
}

TYPED_TEST(ClientConformance, StatisticsTellThePath) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  this->Store(*this->client_, spec, chain);
  this->ExpectAll(*this->client_, spec, chain, Sink::Wish::kDestination);
  const ClientStats stats = this->client_->GetStats();
  EXPECT_EQ(stats.path, this->world_.path()) << stats.path_reason;
  EXPECT_GT(stats.pushed_bytes, 0u);
  EXPECT_GT(stats.fetched_bytes[0], 0u);
  if (stats.path == Path::kLocal) {
    const auto local = static_cast<size_t>(Path::kLocal);
    EXPECT_EQ(stats.pushed_bytes_by_path[local], stats.pushed_bytes);
    EXPECT_EQ(stats.fetched_bytes_by_path[local], stats.fetched_bytes[0]);
    EXPECT_EQ(stats.local_sessions, 1u);
    EXPECT_EQ(stats.local_fallbacks, 0u);
  } else {
    EXPECT_EQ(stats.lent_bytes + stats.local_sessions, 0u);
  }
}

TYPED_TEST(ClientConformance, LargeSlicesAndManyParts) {
  const NamespaceSpec spec = LargeSpec(2048);
  const Chain chain(spec, 3, {{0, 2, 0, 6}, {2, 4, 0, 3}, {2, 4, 3, 6}});
  this->Store(*this->client_, spec, chain);
  for (const auto wish : kWishes) {
    this->ExpectAll(*this->client_, spec, chain, wish);
    this->ExpectAll(*this->client_, spec, chain, wish, {.verify = false});
  }
}

TYPED_TEST(ClientConformance, WhatIsWrittenInPlaceIsFetched) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 5);
  ASSERT_OK(this->client_->OpenNamespace(spec, kCall));
  const auto parts = ToWrite(chain);
  auto push = this->client_->BeginPush(Fingerprint(spec), parts, kPush);
  ASSERT_OK(push);
  ASSERT_EQ((*push)->slots().size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const InPlacePush::Slot& slot = (*push)->slots()[i];
    ASSERT_OK(slot.status);
    ASSERT_EQ(slot.room.size(), parts[i].bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot.room.data()) % 64, 0u);
    std::copy(chain.parts[i].bytes.begin(), chain.parts[i].bytes.end(), slot.room.begin());
  }
  auto nothing = this->client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(nothing);
  EXPECT_EQ(nothing->matched_blocks, 0u) << "nothing is visible before Commit";
  const auto committed = (*push)->Commit();
  ASSERT_OK(committed);
  ASSERT_EQ(committed->size(), parts.size());
  for (const Status& status : *committed) EXPECT_OK(status);
  this->ExpectAll(*this->client_, spec, chain, Sink::Wish::kDestination);

  auto again = this->client_->BeginPush(Fingerprint(spec), parts, kPush);
  ASSERT_OK(again);
  for (size_t i = 0; i < parts.size(); ++i) {
    const InPlacePush::Slot& slot = (*again)->slots()[i];
    EXPECT_OK(slot.status) << "stored already is success";
    if (!slot.room.empty()) {
      std::copy(chain.parts[i].bytes.begin(), chain.parts[i].bytes.end(), slot.room.begin());
    }
  }
  const auto stored = (*again)->Commit();
  ASSERT_OK(stored);
  for (const Status& status : *stored) EXPECT_OK(status);
}

TYPED_TEST(ClientConformance, RoomThatIsNotCommittedLeavesNothing) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 4);
  ASSERT_OK(this->client_->OpenNamespace(spec, kCall));
  {
    auto push = this->client_->BeginPush(Fingerprint(spec), ToWrite(chain), kPush);
    ASSERT_OK(push);
    ASSERT_OK((*push)->slots()[0].status);
  }
  EXPECT_TRUE(this->StatBecomes(*this->client_, [](const NodeStats& s) {
    return s.reservations == 0 && s.reserved_bytes == 0 && s.blocks == 0;
  }));
  this->Store(*this->client_, spec, chain);
}

// At the commit, or, where the room was lent memory, by whoever reads them first.
TYPED_TEST(ClientConformance, WrongBytesAreRefusedAtCommitOrFoundByReaders) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 2);
  ASSERT_OK(this->client_->OpenNamespace(spec, kCall));
  auto push = this->client_->BeginPush(Fingerprint(spec), ToWrite(chain), kPush);
  ASSERT_OK(push);
  for (size_t i = 0; i < 2; ++i) {
    const std::span<std::byte> room = (*push)->slots()[i].room;
    std::copy(chain.parts[i].bytes.begin(), chain.parts[i].bytes.end(), room.begin());
  }
  (*push)->slots()[1].room.back() ^= std::byte{4};
  const auto committed = (*push)->Commit();
  ASSERT_OK(committed);
  EXPECT_OK((*committed)[0]);
  auto match = this->client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  if (!(*committed)[1].ok()) {
    EXPECT_THAT((*committed)[1], StatusIs(StatusCode::kDataLoss, _));
    EXPECT_EQ(match->matched_blocks, 1u);
    return;
  }
  EXPECT_NE(this->world_.path(), Path::kGrpc) << "the node had the bytes to itself";
  ASSERT_EQ(match->matched_blocks, 2u);
  for (const Sink::Wish wish : {Sink::Wish::kOwnBuffer, Sink::Wish::kPieces, Sink::Wish::kLent}) {
    Sink sink(spec, chain.keys, wish);
    ASSERT_OK(this->client_->Fetch(match->lease, {}, sink, kFetch));
    EXPECT_EQ(sink.wrong, 0u);
    EXPECT_THAT(sink.failed, ::testing::ElementsAre(std::pair(1u, MissReason::kCorrupt)));
  }
  match->lease = {};
  EXPECT_TRUE(this->StatBecomes(*this->client_, [](const NodeStats& s) { return s.blocks == 1; }));
}

TYPED_TEST(ClientConformance, AMissIsAnAnswer) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  EXPECT_THAT(this->client_->Match(Fingerprint(spec), chain.keys, kMatch).status(),
              ::testing::Not(StatusIs(StatusCode::kOk, _)))
      << "the namespace was not opened";
  this->Store(*this->client_, spec, chain);
  const auto keys = KeysFor(spec, 5);
  auto match = this->client_->Match(Fingerprint(spec), keys, kMatch);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 3u);
  EXPECT_EQ(match->miss_reason, MissReason::kAbsent);
  EXPECT_TRUE(match->lease.held());
  uint64_t bytes = 0;
  uint32_t blocks = 0;
  for (const TierRun& run : match->tiers) {
    bytes += run.bytes;
    blocks += run.blocks;
  }
  EXPECT_EQ(bytes, match->bytes);
  EXPECT_EQ(blocks, 3u);
  auto others = this->client_->Match(Fingerprint(spec), KeysFor(spec, 2, 5000), kMatch);
  ASSERT_OK(others);
  EXPECT_EQ(others->matched_blocks, 0u);
  EXPECT_FALSE(others->lease.held());
  auto only_asked =
      this->client_->Match(Fingerprint(spec), keys, {.deadline = seconds(60), .lease = false});
  ASSERT_OK(only_asked);
  EXPECT_EQ(only_asked->matched_blocks, 3u);
  EXPECT_FALSE(only_asked->lease.held());
  const auto exists = this->client_->Exists(Fingerprint(spec), keys, kCall);
  ASSERT_OK(exists);
  EXPECT_THAT(*exists, ::testing::ElementsAre(TierKind::kHost, TierKind::kHost, TierKind::kHost,
                                              std::nullopt, std::nullopt));
}

TYPED_TEST(ClientConformance, AGetBringsWhatThereIs) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  this->Store(*this->client_, spec, chain);
  const auto keys = KeysFor(spec, 5);
  for (const auto wish : kWishes) {
    Sink sink(spec, keys, wish);
    const auto got = this->client_->Get(Fingerprint(spec), keys, {}, sink, kMatch, kFetch);
    ASSERT_OK(got);
    EXPECT_EQ(got->matched_blocks, 3u);
    EXPECT_EQ(got->miss_reason, MissReason::kAbsent);
    EXPECT_GT(got->bytes, 0u);
    EXPECT_FALSE(got->lease.held());
    EXPECT_EQ(sink.slices, 12u);
    EXPECT_EQ(sink.wrong + sink.twice + sink.failed.size(), 0u);
  }
  Sink layers(spec, keys, Sink::Wish::kDestination);
  ASSERT_OK(
      this->client_->Get(Fingerprint(spec), keys, {.begin = 1, .end = 3}, layers, kMatch, kFetch));
  EXPECT_EQ(layers.slices, 6u);
  EXPECT_EQ(layers.wrong, 0u);

  const auto others = KeysFor(spec, 2, 5000);
  Sink nothing(spec, others, Sink::Wish::kDestination);
  const auto missed = this->client_->Get(Fingerprint(spec), others, {}, nothing, kMatch, kFetch);
  ASSERT_OK(missed);
  EXPECT_EQ(missed->matched_blocks, 0u);
  EXPECT_EQ(missed->miss_reason, MissReason::kAbsent);
  EXPECT_EQ(nothing.slices, 0u);
  EXPECT_TRUE(this->StatBecomes(*this->client_, [](const NodeStats& s) { return s.leases == 0; }));

  std::stop_source stop;
  stop.request_stop();
  Sink stopped(spec, keys, Sink::Wish::kDestination);
  EXPECT_THAT(this->client_->Get(Fingerprint(spec), keys, {}, stopped, kMatch,
                                 {.cancel = stop.get_token()}),
              StatusIs(StatusCode::kCancelled, _));
  EXPECT_THAT(this->client_->Get(Digest(), keys, {}, stopped, kMatch, kFetch).status(),
              ::testing::Not(StatusIs(StatusCode::kOk, _)));
  EXPECT_TRUE(this->StatBecomes(*this->client_, [](const NodeStats& s) { return s.leases == 0; }));
}

TYPED_TEST(ClientConformance, ManyKeysInOneCall) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 2);
  this->Store(*this->client_, spec, chain);
  const auto keys = KeysFor(spec, 20'000);
  auto match = this->client_->Match(Fingerprint(spec), keys, kMatch);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 2u);
  const auto exists = this->client_->Exists(Fingerprint(spec), keys, kCall);
  ASSERT_OK(exists);
  EXPECT_EQ(exists->size(), keys.size());
  EXPECT_EQ((*exists)[1], TierKind::kHost);
  EXPECT_EQ(exists->back(), std::nullopt);
}

TYPED_TEST(ClientConformance, ARangeOfBlocksAndLayers) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 6);
  this->Store(*this->client_, spec, chain);
  auto match = this->client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  for (const auto wish : {Sink::Wish::kDestination, Sink::Wish::kPieces, Sink::Wish::kLent}) {
    Sink sink(spec, chain.keys, wish);
    ASSERT_OK(this->client_->Fetch(
        match->lease, {.block_begin = 1, .block_end = 4, .layer_begin = 2, .layer_end = 4}, sink,
        kFetch));
    EXPECT_EQ(sink.slices, 6u);
    EXPECT_EQ(sink.wrong, 0u);
  }
}

TYPED_TEST(ClientConformance, ARangeThatCannotBeIsNamed) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  this->Store(*this->client_, spec, chain);
  auto match = this->client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  const struct {
    FetchRange range;
    const char* field;
  } cases[] = {
      {{.block_begin = 2, .block_end = 2}, "'blocks'"},
      {{.block_begin = 3}, "'blocks'"},
      {{.block_end = 4}, "'blocks'"},
      {{.layer_begin = 2, .layer_end = 2}, "'layers'"},
      {{.layer_begin = 3, .layer_end = 1}, "'layers'"},
  };
  for (const auto& c : cases) {
    Sink sink(spec, chain.keys, Sink::Wish::kDestination);
    EXPECT_THAT(this->client_->Fetch(match->lease, c.range, sink, kFetch),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(c.field)));
    EXPECT_EQ(sink.slices, 0u);
  }
  Sink sink(spec, chain.keys, Sink::Wish::kDestination);
  EXPECT_THAT(this->client_->Get(Fingerprint(spec), chain.keys, {.begin = 2, .end = 1}, sink,
                                 kMatch, kFetch),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'layers'")));
  EXPECT_THAT(this->client_->Match(Fingerprint(spec), {}, kMatch),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'keys'")));
  EXPECT_THAT(this->client_->Exists(Fingerprint(spec), {}, kCall),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'keys'")));
}

TYPED_TEST(ClientConformance, LeasesEndWithTheirHandle) {
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  this->Store(*this->client_, spec, chain);
  auto match = this->client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  EXPECT_TRUE(this->StatBecomes(*this->client_, [](const NodeStats& s) { return s.leases == 1; }));
  const auto renewed = this->client_->RenewLease(match->lease, seconds(60), kCall);
  ASSERT_OK(renewed);
  EXPECT_EQ(*renewed, seconds(60));
  match->lease.Release();
  EXPECT_TRUE(this->StatBecomes(*this->client_, [](const NodeStats& s) { return s.leases == 0; }));
}

TYPED_TEST(ClientConformance, ASinkThatRefusesEndsTheFetch) {
  class Refuses final : public FetchSink {
   public:
    explicit Refuses(bool lent) : lent_(lent) {}
    Status OnSlice(const SliceInfo&, std::span<const std::byte>) override {
      return Errorf(StatusCode::kAborted, "enough");
    }
    bool WantsLent() const override { return lent_; }
    void OnBlockFailed(uint32_t, MissReason) override {}

   private:
    const bool lent_;
  };
  const NamespaceSpec spec = SmallSpec();
  const Chain chain(spec, 3);
  this->Store(*this->client_, spec, chain);
  auto match = this->client_->Match(Fingerprint(spec), chain.keys, kMatch);
  ASSERT_OK(match);
  for (const bool lent : {false, true}) {
    Refuses sink(lent);
    EXPECT_THAT(this->client_->Fetch(match->lease, {}, sink, kFetch),
                StatusIs(StatusCode::kAborted, _));
  }
  std::stop_source stop;
  stop.request_stop();
  Sink sink(spec, chain.keys, Sink::Wish::kDestination);
  EXPECT_THAT(this->client_->Fetch(match->lease, {}, sink, {.cancel = stop.get_token()}),
              StatusIs(StatusCode::kCancelled, _));
}

TYPED_TEST(ClientConformance, SeveralClientsAndThreadsAtOnce) {
  const NamespaceSpec spec = SmallSpec();
  ASSERT_OK(this->client_->OpenNamespace(spec, kCall));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  const auto other = this->world_.Client();
  ASSERT_OK(other->OpenNamespace(spec, kCall));
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CacheClient& client = t % 2 == 0 ? *this->client_ : *other;
      for (int i = 0; i < 15; ++i) {
        // Two threads each push the same blocks.
        const Chain chain(spec, 4, {}, 10'000 * (t / 2) + 1000 * i);
        const auto pushed = client.Push(Fingerprint(spec), chain.parts, kPush);
        if (!pushed.ok()) {
          ++failures;
          continue;
        }
        auto match = client.Match(Fingerprint(spec), chain.keys, kMatch);
        // The other thread may still be writing some of them.
        if (!match.ok()) ++failures;
        if (!match.ok() || match->matched_blocks == 0) continue;
        Sink sink(spec, chain.keys, i % 2 == 0 ? Sink::Wish::kLent : Sink::Wish::kDestination);
        if (!client.Fetch(match->lease, {}, sink, kFetch).ok() || sink.wrong > 0 ||
            sink.twice > 0 || sink.slices != 4 * match->matched_blocks) {
          ++failures;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(this->StatBecomes(
      *this->client_, [](const NodeStats& s) { return s.leases == 0 && s.reservations == 0; }));
}

}  // namespace
}  // namespace cairn::client
