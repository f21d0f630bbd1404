// The client's end of a same-node session against a node that follows a script.
#include "clients/cpp/src/local/local_session.h"

#include <list>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "clients/cpp/src/local/local_fetch.h"
#include "clients/cpp/src/local/local_path.h"
#include "clients/cpp/src/local/local_push.h"
#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/local/local_node.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client::local {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using testing::Chain;
using ::testing::HasSubstr;
using testing::LocalNode;
using testing::SmallSpec;
using Script = LocalNode::Script;

TimePoint In(Duration d) { return std::chrono::steady_clock::now() + d; }

enum class Room { kWhole, kPieces, kNone };

// Checks every slice, and keeps what was lent.
class Sink final : public FetchSink {
 public:
  Sink(const NamespaceSpec& spec, const std::vector<BlockKey>& keys, bool wants_lent = false,
       Room room = Room::kWhole)
      : spec_(spec), keys_(keys), lent_(wants_lent), room_(room) {}
  std::span<std::byte> Destination(const SliceInfo& slice) override {
    if (room_ != Room::kWhole) return {};
    buffers_.emplace_back(slice.slice_bytes);
    return buffers_.back();
  }
  std::vector<std::span<std::byte>> Pieces(const SliceInfo& slice) override {
    std::vector<std::span<std::byte>> pieces;
    if (room_ != Room::kPieces) return pieces;
    auto& buffers = pieces_[{slice.block, slice.layer, slice.part}];
    for (uint64_t left = slice.slice_bytes, n = 1; left > 0; left -= pieces.back().size(), n *= 5) {
      buffers.emplace_back(std::min<uint64_t>(n, left));
      pieces.push_back(buffers.back());
    }
    return pieces;
  }
  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    ++copied;
    if (before_look) before_look();
    if (room_ != Room::kPieces) return Look(slice, data);
    std::vector<std::byte> whole;
    for (const auto& piece : pieces_.at({slice.block, slice.layer, slice.part})) {
      whole.insert(whole.end(), piece.begin(), piece.end());
    }
    return Look(slice, whole);
  }
  bool WantsLent() const override { return lent_; }
  Status OnLentSlice(const SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const LentHold> hold) override {
    ++lent;
    if (before_look) before_look();
    holds.push_back(std::move(hold));
    kept.emplace_back(slice, data);
    const auto [it, first] = ends_.try_emplace(slice.block, data.data());
    in_order = in_order && (first || it->second == data.data());
    it->second = data.data() + data.size();
    return Look(slice, data);
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override { failed[block] = reason; }

  int copied = 0, lent = 0, wrong = 0;
  bool in_order = true;
  std::function<void()> before_look;  // Called after a slice was verified, before it is used.
  std::vector<std::shared_ptr<const LentHold>> holds;
  std::vector<std::pair<SliceInfo, std::span<const std::byte>>> kept;
  std::map<uint32_t, MissReason> failed;

  Status Look(const SliceInfo& slice, std::span<const std::byte> data) {
    const auto expected = testing::SliceData(spec_, keys_.at(slice.block), slice.layer, slice.part);
    if (!std::equal(data.begin(), data.end(), expected.begin(), expected.end())) ++wrong;
    return OkStatus();
  }

 private:
  const NamespaceSpec& spec_;
  const std::vector<BlockKey>& keys_;
  const bool lent_;
  const Room room_;
  std::list<std::vector<std::byte>> buffers_;
  std::map<std::tuple<uint32_t, uint32_t, format::PartRect>, std::list<std::vector<std::byte>>>
      pieces_;
  std::map<uint32_t, const std::byte*> ends_;
};

class LocalSessionTest : public ::testing::Test {
 protected:
  static LocalSession::Options OptionsFor(const LocalNode& node) {
    return {.socket = node.path(),
            .token = std::string(16, 't'),
            .tenant = "default",
            .client = "test",
            .node_epoch = 5};
  }
  static std::shared_ptr<LocalSession> Open(const LocalNode& node) {
    auto session = LocalSession::Open(OptionsFor(node), &SteadyClock::Get(), In(seconds(60)));
    CAIRN_CHECK(session.ok());
    return *session;
  }
  Status PushAll(const std::shared_ptr<LocalSession>& session, const Chain& chain) {
    const PushReport report = PushParts(session, fingerprint_, chain.parts, In(seconds(60)));
    for (const Status& result : report.results) CAIRN_RETURN_IF_ERROR(result);
    return report.status;
  }
  static void KeepAll(LocalNode& node, const Chain& chain) {
    for (const PartToPush& part : chain.parts) node.Keep(part.key, part.rect, part.bytes);
  }
  Result<LocalSession::Matched> Match(const std::shared_ptr<LocalSession>& session,
                                      std::span<const BlockKey> keys,
                                      Duration deadline = seconds(60)) {
    return session->Match(fingerprint_, keys, {}, In(deadline));
  }
  Status Fetch(const std::shared_ptr<LeasePin>& pin, uint32_t blocks, FetchSink& sink,
               FetchRange range = {}) {
    const FetchOptions options{.progress = seconds(60)};
    LocalFetch fetch(pin, blocks, range, sink, options, In(seconds(60)));
    const Status status = fetch.Run();
    rest_ = fetch.rest();
    counts_ = fetch.counts();
    return status;
  }

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 8};
  std::vector<std::pair<uint32_t, uint32_t>> rest_;
  FetchCounts counts_;
};

TEST_F(LocalSessionTest, WhatIsPushedIsMatchedAndCopiedOut) {
  LocalNode node;
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  auto matched = Match(session, chain_.keys);
  ASSERT_OK(matched);
  EXPECT_EQ(matched->outcome.matched_blocks, 8u);
  EXPECT_EQ(matched->outcome.tiers.size(), 1u);
  for (const Room room : {Room::kWhole, Room::kPieces, Room::kNone}) {
    Sink sink(spec_, chain_.keys, false, room);
    ASSERT_OK(Fetch(matched->pin, 8, sink));
    EXPECT_EQ(sink.copied, 32);
    EXPECT_EQ(sink.wrong, 0);
    EXPECT_TRUE(rest_.empty());
  }
  const auto exists = session->Exists(fingerprint_, testing::KeysFor(spec_, 9), In(seconds(60)));
  ASSERT_OK(exists);
  EXPECT_EQ((*exists)[7], TierKind::kHost);
  EXPECT_EQ((*exists)[8], std::nullopt);
}

TEST_F(LocalSessionTest, ARangeOfBlocksAndLayers) {
  LocalNode node;
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  auto matched = Match(session, chain_.keys);
  ASSERT_OK(matched);
  Sink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(matched->pin, 8, sink,
                  {.block_begin = 2, .block_end = 5, .layer_begin = 1, .layer_end = 2}));
  EXPECT_EQ(sink.copied, 3);
  EXPECT_EQ(sink.wrong, 0);
}

TEST_F(LocalSessionTest, LentSlicesLieInLayerOrderAndPinUntilDropped) {
  LocalNode node({.frozen = true});
  KeepAll(node, chain_);
  const auto session = Open(node);
  Sink sink(spec_, chain_.keys, /*wants_lent=*/true);
  {
    auto matched = Match(session, chain_.keys);
    ASSERT_OK(matched);
    ASSERT_OK(Fetch(matched->pin, 8, sink));
  }
  EXPECT_EQ(sink.lent, 32);
  EXPECT_EQ(sink.wrong, 0);
  EXPECT_TRUE(sink.in_order);
  EXPECT_EQ(counts_.lent_bytes, counts_.bytes[0]);
  // Another call shows that nothing was given back before it.
  ASSERT_OK(session->Exists(fingerprint_, chain_.keys, In(seconds(60))));
  EXPECT_EQ(node.counts().leases, 1u);
  EXPECT_TRUE(sink.holds[0]->Pinned());
  sink.holds.clear();
  EXPECT_TRUE(node.WaitFor([](const auto& c) { return c.leases == 0; }));
}

// A writer changes the memory at the worst moment: after the check, before the use.
TEST_F(LocalSessionTest, WhatOthersCanWriteIsCopiedBeforeItCounts) {
  for (const Room room : {Room::kWhole, Room::kPieces, Room::kNone}) {
    LocalNode node;
    const auto session = Open(node);
    ASSERT_OK(PushAll(session, chain_));
    auto matched = Match(session, chain_.keys);
    ASSERT_OK(matched);
    Sink sink(spec_, chain_.keys, /*wants_lent=*/true, room);
    sink.before_look = [&] { node.Scribble(); };
    ASSERT_OK(Fetch(matched->pin, 8, sink));
    EXPECT_GT(sink.copied, 0);
    EXPECT_EQ(sink.lent, 0);
    EXPECT_EQ(sink.wrong, 0);
    EXPECT_EQ(counts_.lent_bytes, 0u);
    EXPECT_GT(counts_.slices, 0u);
  }
}

TEST_F(LocalSessionTest, LentBytesOutliveTheNode) {
  auto node = std::make_unique<LocalNode>(Script{.frozen = true});
  KeepAll(*node, chain_);
  Sink sink(spec_, chain_.keys, /*wants_lent=*/true);
  {
    auto session = Open(*node);
    auto matched = Match(session, chain_.keys);
    ASSERT_OK(matched);
    ASSERT_OK(Fetch(matched->pin, 8, sink));
    session->Close();
  }
  node.reset();
  EXPECT_FALSE(sink.holds[0]->Pinned());
  for (const auto& [slice, data] : sink.kept) EXPECT_OK(sink.Look(slice, data));
  EXPECT_EQ(sink.wrong, 0);
}

TEST_F(LocalSessionTest, UncommittedRoomsAreGivenBack) {
  LocalNode node;
  const auto session = Open(node);
  std::vector<PartToWrite> parts;
  for (const PartToPush& part : chain_.parts) {
    parts.push_back(
        {.key = part.key, .parent = part.parent, .rect = part.rect, .bytes = part.bytes.size()});
  }
  {
    auto push = LocalPush::Begin(session, fingerprint_, parts, {}, {}, In(seconds(60)));
    ASSERT_OK(push);
    EXPECT_EQ((*push)->slots().size(), 8u);
    EXPECT_EQ((*push)->slots()[3].room.size(), parts[3].bytes);
    EXPECT_EQ(node.counts().reservations, 8u);
  }
  EXPECT_TRUE(node.WaitFor([](const auto& c) { return c.reservations == 0 && c.parts == 0; }));
}

TEST_F(LocalSessionTest, PartsWithoutRoomGoTheOtherWay) {
  LocalNode node({.no_room = true});
  const auto session = Open(node);
  const std::vector<PartToWrite> parts(
      1, {.key = chain_.keys[0], .rect = chain_.parts[0].rect, .bytes = 4096});
  auto refused = LocalPush::Begin(session, fingerprint_, parts, {}, {}, In(seconds(60)));
  ASSERT_OK(refused);
  EXPECT_THAT((*refused)->slots()[0].status, StatusIs(StatusCode::kResourceExhausted, _));
  size_t asked = 0;
  class Rest final : public InPlacePush {
   public:
    std::span<const Slot> slots() const override { return slots_; }
    Path path() const override { return Path::kGrpc; }
    Result<std::vector<Status>> Commit() override { return std::vector<Status>(1); }
    std::vector<std::byte> room_ = std::vector<std::byte>(4096);
    std::vector<Slot> slots_{{OkStatus(), room_}};
  };
  auto push = LocalPush::Begin(
      session, fingerprint_, parts, {},
      {.rest =
           [&](std::span<const PartToWrite> some) {
             asked = some.size();
             return std::make_unique<Rest>();
           },
       .committed = [](uint64_t, uint64_t) { ADD_FAILURE() << "nothing was committed here"; }},
      In(seconds(60)));
  ASSERT_OK(push);
  EXPECT_EQ(asked, 1u);
  EXPECT_EQ((*push)->slots()[0].room.size(), 4096u);
  const auto results = (*push)->Commit();
  ASSERT_OK(results);
  EXPECT_OK((*results)[0]);
}

TEST_F(LocalSessionTest, ManyThreadsShareOneRing) {
  // Fewer entries than threads: some wait for a place.
  LocalNode node({.shape = {.entries = 2, .scratch_bytes = 8192}});
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        auto matched = Match(session, std::span(chain_.keys).first(1 + static_cast<size_t>(t)));
        if (!matched.ok() || matched->pin == nullptr) {
          ++failures;
          continue;
        }
        Sink sink(spec_, chain_.keys, i % 2 == 0);
        const FetchOptions options{.progress = seconds(60)};
        LocalFetch fetch(matched->pin, static_cast<uint32_t>(t + 1), {}, sink, options,
                         In(seconds(60)));
        if (!fetch.Run().ok() || sink.wrong != 0 || sink.copied + sink.lent != 4 * (t + 1))
          ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  // The last releases may have found no room.
  for (int i = 0; i < 3; ++i)
    ASSERT_OK(session->Exists(fingerprint_, chain_.keys, In(seconds(60))));
  EXPECT_TRUE(node.WaitFor([](const auto& c) { return c.leases == 0; }));
}

TEST_F(LocalSessionTest, PendingBlocksAreAskedForAgain) {
  LocalNode node({.pending = 3});
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  auto matched = Match(session, chain_.keys);
  ASSERT_OK(matched);
  EXPECT_EQ(matched->outcome.tiers[0].tier, TierKind::kDisk);
  Sink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(matched->pin, 8, sink));
  EXPECT_EQ(sink.copied, 32);
  EXPECT_EQ(sink.wrong, 0);
}

TEST_F(LocalSessionTest, PlacesThatDoNotFitComeInPieces) {
  LocalNode node({.places_per_answer = 3});
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  auto matched = Match(session, chain_.keys);
  ASSERT_OK(matched);
  Sink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(matched->pin, 8, sink));
  EXPECT_EQ(sink.copied, 32);
}

TEST_F(LocalSessionTest, BlocksElsewhereAreLeftToGrpc) {
  LocalNode node({.elsewhere = true});
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  auto matched = Match(session, chain_.keys);
  ASSERT_OK(matched);
  Sink sink(spec_, chain_.keys);
  ASSERT_OK(Fetch(matched->pin, 8, sink, {.block_begin = 1, .block_end = 4}));
  EXPECT_EQ(sink.copied, 0);
  EXPECT_EQ(rest_, (std::vector<std::pair<uint32_t, uint32_t>>{{1, 4}}));
}

TEST_F(LocalSessionTest, WrongBytesAreReportedAndNeverDelivered) {
  LocalNode node;
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  node.Damage(chain_.keys[2], 300);  // A slice.
  node.Damage(chain_.keys[5], 20);   // The header.
  auto matched = Match(session, chain_.keys);
  ASSERT_OK(matched);
  for (const auto& [lent, room] : {std::pair(true, Room::kWhole), std::pair(false, Room::kWhole),
                                   std::pair(false, Room::kPieces)}) {
    Sink sink(spec_, chain_.keys, lent, room);
    ASSERT_OK(Fetch(matched->pin, 8, sink));
    EXPECT_EQ(sink.wrong, 0);
    EXPECT_EQ(sink.failed, (std::map<uint32_t, MissReason>{{2, MissReason::kCorrupt},
                                                           {5, MissReason::kCorrupt}}));
    EXPECT_TRUE(rest_.empty());
  }
  EXPECT_TRUE(node.WaitFor([](const auto& c) { return c.reports == 6; }));
}

TEST_F(LocalSessionTest, ACallEndsAtItsDeadlineAndALateLeaseIsGivenBack) {
  LocalNode node;
  const auto session = Open(node);
  ASSERT_OK(PushAll(session, chain_));
  node.Set([](Script& s) { s.hang = true; });
  EXPECT_THAT(Match(session, chain_.keys, milliseconds(200)).status(),
              StatusIs(StatusCode::kDeadlineExceeded, _));
  node.Set([](Script& s) { s.hang = false; });
  ASSERT_TRUE(node.WaitFor([](const auto& c) { return c.leases == 1; }));
  // The answer that came too late is found by the next call.
  for (int i = 0; i < 2; ++i)
    ASSERT_OK(session->Exists(fingerprint_, chain_.keys, In(seconds(60))));
  EXPECT_TRUE(node.WaitFor([](const auto& c) { return c.leases == 0; }));
}

TEST_F(LocalSessionTest, AFullRingIsADeadlineToo) {
  LocalNode node({.shape = {.entries = 1, .scratch_bytes = 4096}});
  const auto session = Open(node);
  node.Set([](Script& s) { s.hang = true; });
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Match(session, std::span(chain_.keys).first(1), milliseconds(10)).status(),
                StatusIs(StatusCode::kDeadlineExceeded, _));
  }
  node.Set([](Script& s) { s.hang = false; });
  EXPECT_OK(Match(session, std::span(chain_.keys).first(1)));
}

TEST_F(LocalSessionTest, WhatCannotFitIsRefusedAtOnce) {
  LocalNode node({.shape = {.entries = 1, .scratch_bytes = 4096}});
  const auto session = Open(node);
  const auto keys = testing::KeysFor(spec_, 200);
  EXPECT_THAT(Match(session, keys).status(), StatusIs(StatusCode::kResourceExhausted, _));
  EXPECT_EQ(session->Exists(fingerprint_, keys, In(seconds(60)))->size(), 200u);
}

TEST_F(LocalSessionTest, HangUpEndsCallsAtOnce) {
  LocalNode node;
  const auto session = Open(node);
  node.Set([](Script& s) { s.hang = true; });
  std::thread killer([&] {
    ASSERT_TRUE(node.WaitFor([](const auto& c) { return c.submissions == 1; }));
    node.HangUp();
  });
  EXPECT_THAT(Match(session, chain_.keys, std::chrono::hours(1)).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("hung up")))
      << "not by its deadline";
  killer.join();
  EXPECT_THAT(Match(session, chain_.keys).status(), StatusIs(StatusCode::kUnavailable, _));
}

TEST_F(LocalSessionTest, AnotherNodeBehindTheSocketIsRefused) {
  LocalNode node({.epoch = 6});
  EXPECT_THAT(LocalSession::Open(OptionsFor(node), &SteadyClock::Get(), In(seconds(60))).status(),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("epoch 6, expected 5")));
  node.Set([](Script& s) { s.welcome_code = 7; });
  EXPECT_THAT(LocalSession::Open(OptionsFor(node), &SteadyClock::Get(), In(seconds(60))).status(),
              StatusIs(StatusCode::kPermissionDenied, _));
  auto options = OptionsFor(node);
  options.socket += "-nobody";
  EXPECT_THAT(LocalSession::Open(options, &SteadyClock::Get(), In(seconds(60))).status(),
              StatusIs(StatusCode::kUnavailable, _));
}

TEST_F(LocalSessionTest, SegmentsThatCouldShrinkAreRefused) {
  LocalNode node({.seal = false});
  const auto session = Open(node);
  EXPECT_THAT(PushAll(session, chain_), StatusIs(StatusCode::kDataLoss, _));
}

TEST_F(LocalSessionTest, UnknownSegmentsAreRefused) {
  LocalNode node({.announce = false});
  const auto session = Open(node);
  EXPECT_THAT(PushAll(session, chain_),
              StatusIs(StatusCode::kDataLoss, HasSubstr("unknown segment")));
}

// Whatever a node writes into the ring, calls end, and nothing outside of the mapped memory is
// touched.
TEST_F(LocalSessionTest, NonsenseFromTheNodeHarmsNothing) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    LocalNode node;
    const auto session = Open(node);
    ASSERT_OK(PushAll(session, chain_));
    auto random = std::make_shared<std::mt19937_64>(seed);
    node.Set([&](Script& s) {
      s.mangle = [random](const shm::Submission&, shm::Completion* c, std::span<std::byte> output) {
        std::mt19937_64& r = *random;
        const auto scramble = [&](std::span<std::byte> bytes, size_t times) {
          for (size_t i = 0; i < times && !bytes.empty(); ++i) {
            bytes[r() % bytes.size()] = static_cast<std::byte>(r());
          }
        };
        if (r() % 4 == 0) scramble(std::as_writable_bytes(std::span(c, 1)), 1 + r() % 3);
        if (r() % 2 == 0)
          scramble(output.first(std::min<size_t>(output.size(), 512)), 1 + r() % 20);
        if (r() % 16 == 0) c->count = static_cast<uint32_t>(r());
        if (r() % 16 == 0) c->cookie = r() % 32;
      };
    });
    for (int i = 0; i < 10; ++i) {
      auto matched = Match(session, chain_.keys, milliseconds(50));
      if (matched.ok() && matched->pin != nullptr) {
        Sink sink(spec_, chain_.keys, i % 2 == 0);
        const FetchOptions options{.progress = milliseconds(20), .deadline = milliseconds(50)};
        LocalFetch fetch(matched->pin, std::min(matched->outcome.matched_blocks, 8u), {}, sink,
                         options, In(milliseconds(50)));
        (void)fetch.Run();
        EXPECT_EQ(sink.wrong, 0) << "seed " << seed;
      }
      (void)PushParts(session, fingerprint_, Chain(spec_, 2, {}, 1000 * i).parts,
                      In(milliseconds(50)));
      (void)session->Exists(fingerprint_, chain_.keys, In(milliseconds(50)));
    }
  }
}

TEST_F(LocalSessionTest, ThePathOpensByItselfAndAgainAfterAFailure) {
  LocalNode node;
  LocalPath path({.client = "test", .first_pause = milliseconds(1)}, &SteadyClock::Get());
  path.Remember(fingerprint_, "default");
  const Digest other = Fingerprint(SmallSpec("another"));
  path.Remember(other, "another");
  const auto offer =
      std::make_shared<const SessionInfo>(SessionInfo{.id = "s",
                                                      .node_epoch = 5,
                                                      .local_socket = node.path(),
                                                      .local_token = std::string(16, 't')});
  const auto get = [&] { return path.Get(offer, fingerprint_, In(seconds(60))); };
  const auto first = get();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(get(), first);
  EXPECT_EQ(path.Get(offer, other, In(seconds(60))), nullptr) << "a tenant per session";
  EXPECT_TRUE(path.GetState().open);

  ASSERT_OK(PushAll(first, chain_));
  auto matched = Match(first, chain_.keys);
  ASSERT_OK(matched);
  const uint64_t lease = matched->pin->lease();
  path.Keep(std::move(matched->pin));
  const LeaseInfo kept = {.id = lease, .session = "s"};
  EXPECT_NE(path.Find(kept), nullptr);
  EXPECT_EQ(path.Find({.id = lease, .session = "another session"}), nullptr);
  EXPECT_TRUE(path.Drop(kept));
  EXPECT_FALSE(path.Drop(kept));

  node.HangUp();
  while (first->Alive()) std::this_thread::yield();
  EXPECT_FALSE(path.GetState().open);
  std::shared_ptr<LocalSession> second;
  const TimePoint until = In(seconds(60));
  while ((second = get()) == nullptr && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second, first);
  EXPECT_EQ(path.GetState().sessions, 2u);

  const auto none = std::make_shared<const SessionInfo>(SessionInfo{.id = "t", .node_epoch = 6});
  EXPECT_EQ(path.Get(none, fingerprint_, In(seconds(60))), nullptr);
  EXPECT_THAT(path.GetState().reason, HasSubstr("offers no"));
}

}  // namespace
}  // namespace cairn::client::local
