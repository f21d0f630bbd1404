#include "services/cache/cluster/peer/peer_source.h"

#include <gmock/gmock.h>

#include <cstring>
#include <optional>

#include "common/status/matchers.h"
#include "services/cache/cluster/peer/testing/fake_peers.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;

constexpr uint32_t kBlockTokens = 512;  // Each block is a waymark.
constexpr size_t kBytes = 1000;

class Sink final : public BlockSink {
 public:
  Result<std::vector<std::span<std::byte>>> Begin(const SourceBlock&) override {
    if (const Status refused = std::exchange(refuse_next, OkStatus()); !refused.ok()) {
      return refused;
    }
    bytes.assign(kBytes, std::byte{0});
    return std::vector<std::span<std::byte>>{bytes};
  }
  Status Finish() override {
    return bytes == std::vector<std::byte>(kBytes, std::byte{7})
               ? OkStatus()
               : Errorf(StatusCode::kDataLoss, "wrong bytes");
  }
  std::vector<std::byte> bytes;
  Status refuse_next;
};

// Moves what is lent at once, or fails.
class FakeFetcher final : public BlockFetcher {
 public:
  bool MayFetch(const std::string&) const override { return may; }
  void Fetch(const std::string& member, const LentBlock& block,
             std::vector<std::span<std::byte>> rooms, TimePoint, FetchDone done) override {
    members.push_back(member);
    offsets.push_back(block.place.offset);
    for (const auto& room : rooms) std::fill(room.begin(), room.end(), fill);
    if (wait) {
      waiting = std::move(done);
    } else {
      done(status);
    }
  }
  void NoteWrong(const std::string& member, const Status&) override { wrong.push_back(member); }
  bool may = true, wait = false;
  std::byte fill{7};
  Status status;
  FetchDone waiting;
  std::vector<std::string> members, wrong;
  std::vector<uint64_t> offsets;
};

class PeerSourceTest : public ::testing::Test {
 protected:
  // Links let go of callbacks before what they call goes.
  ~PeerSourceTest() override { peers_.DropAll(); }
  void Start(const std::vector<std::string>& ids, PeerSource::Options options = {}) {
    for (const std::string& id : ids) peers_.Add(id);
    owners_ = std::make_shared<const OwnerMap>(ids);
    options.self = "self";
    source_ = std::make_unique<PeerSource>(
        options,
        PeerSource::Dependencies{
            .links = &peers_,
            .directory = &peers_.at("self").directory,
            .known = [](const Digest&) { return PeerSource::Known{.block_tokens = kBlockTokens}; },
            .bumps_differ = [this](const std::string& member) { differ_.push_back(member); },
            .timers = &timers_,
            .clock = &clock_,
            .fetcher = &fetcher_});
    source_->SetOwners(owners_);
    clock_.Advance(options.settling);
  }
  static BlockKey Key(uint64_t n) {
    BlockKey key;
    std::memcpy(key.bytes.data(), &n, sizeof(n));
    return key;
  }
  static std::vector<BlockKey> Keys(uint64_t count) {
    std::vector<BlockKey> keys;
    for (uint64_t n = 0; n < count; ++n) keys.push_back(Key(n));
    return keys;
  }
  static SourceBlock OneBlock() {
    SourceBlock block;
    block.parts.push_back({{0, 1, 0, 1}, kBytes});
    return block;
  }
  void Store(const std::string& id, uint64_t first, uint64_t end,
             TierClass tier = TierClass::kMemory) {
    const SourceBlock block = OneBlock();
    for (uint64_t n = first; n < end; ++n) {
      peers_.at(id).blocks.Put(ns_, Key(n), block, {std::vector<std::byte>(kBytes, std::byte{7})});
      peers_.Announce(*owners_, id, HashForWaymark(ns_, Key(n)), tier);
    }
  }
  std::optional<Result<Located>> Locate(uint64_t count, Duration patience = seconds(1)) {
    // Valid until the answer came.
    keys_ = Keys(count);
    std::optional<Result<Located>> answer;
    source_->Locate(
        ns_, keys_, clock_.Now() + patience,
        [&answer_ = answer_](Result<Located> located) { answer_ = std::move(located); });
    answer.swap(answer_);
    return answer;
  }
  std::vector<uint32_t> Runs(uint64_t count) {
    const auto located = Locate(count);
    std::vector<uint32_t> runs;
    if (!located || !located->ok()) return {999};
    for (const SourceRun& run : (*located)->runs) runs.push_back(run.blocks);
    return runs;
  }
  // The member has the block on its device, too.
  void StoreOnDevice(const std::string& id, uint64_t n) {
    Store(id, n, n + 1);
    peers_.at(id).lends[Key(n)] = {.block = OneBlock(), .place = {.offset = 100 + n}};
  }
  // Gives what is due in each of these milliseconds.
  void Pass(Duration time) {
    for (Duration passed{0}; passed < time; passed += milliseconds(1)) {
      clock_.Advance(milliseconds(1));
      peers_.RunDue();
      timers_.RunDue();
    }
  }
  std::optional<Status> Read(uint64_t n, Duration patience = seconds(1)) {
    read_.reset();
    source_->Read(ns_, Key(n), clock_.Now() + patience, &sink_,
                  [this](Status status) { read_ = std::move(status); });
    return read_;
  }

  const Digest ns_ = Key(1 << 20);
  FakeClock clock_;
  Timers timers_{&clock_};
  FakeFetcher fetcher_;
  testing::FakePeers peers_{&clock_};
  std::shared_ptr<const OwnerMap> owners_;
  std::unique_ptr<PeerSource> source_;
  std::vector<BlockKey> keys_;
  std::optional<Result<Located>> answer_;
  std::optional<Status> read_;
  std::vector<std::string> differ_;
  Sink sink_;
};

TEST_F(PeerSourceTest, ThePrefixIsPutTogetherFromTheBestHolders) {
  Start({"self", "a", "b", "c"});
  Store("a", 0, 10);
  Store("b", 0, 25);
  Store("c", 20, 40);
  EXPECT_THAT(Runs(64), ::testing::ElementsAre(25, 15));
  EXPECT_EQ(peers_.at("a").matches, 0);
}

TEST_F(PeerSourceTest, TheFasterOfTwoThatHoldTheSameIsAsked) {
  Start({"self", "a", "b"});
  Store("a", 0, 8, TierClass::kDisk);
  Store("b", 0, 8, TierClass::kMemory);
  EXPECT_THAT(Runs(8), ::testing::ElementsAre(8));
  EXPECT_EQ(peers_.at("b").matches, 1);
  EXPECT_EQ(peers_.at("a").matches, 0);
}

TEST_F(PeerSourceTest, TheDirectoryIsAHintOnly) {
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  Store("b", 0, 5);
  for (uint64_t n = 0; n < 8; ++n) peers_.at("a").blocks.Remove(ns_, Key(n));
  EXPECT_THAT(Runs(8), ::testing::ElementsAre(5));
}

TEST_F(PeerSourceTest, NobodyIsAskedWhereNobodyHoldsAnything) {
  Start({"self", "a", "b"});
  EXPECT_THAT(Runs(8), ::testing::IsEmpty());
  EXPECT_EQ(peers_.at("a").matches + peers_.at("b").matches, 0);
}

TEST_F(PeerSourceTest, TheSecondOwnerAnswersForOneThatFails) {
  // The directory is asked each time.
  Start({"self", "a", "b", "c"}, {.remembered_blocks = 1});
  Store("c", 0, 16);
  peers_.at("a").answers.FailLocates(1000, Errorf(StatusCode::kUnavailable, "gone"));
  EXPECT_THAT(Runs(16), ::testing::ElementsAre(16));
  // It is skipped from now on.
  const int finds = peers_.at("a").finds;
  EXPECT_EQ(source_->health().skipped(), 1u);
  EXPECT_THAT(Runs(16), ::testing::ElementsAre(16));
  EXPECT_EQ(peers_.at("a").finds, finds);
  // And tried again later.
  peers_.at("a").answers.FailLocates(0, OkStatus());
  clock_.Advance(PeerHealth::kFirstPause);
  EXPECT_THAT(Runs(16), ::testing::ElementsAre(16));
  EXPECT_EQ(source_->health().skipped(), 0u);
}

TEST_F(PeerSourceTest, AYoungOwnerIsNotTheLastWord) {
  Start({"self", "a", "b"});
  Store("a", 0, 16);
  // "b" has just joined and knows nothing, and says so.
  peers_.at("b").directory.SetMembers({});
  peers_.at("b").young = true;
  EXPECT_THAT(Runs(16), ::testing::ElementsAre(16));
}

TEST_F(PeerSourceTest, ALateMemberCostsTheDeadlineAtMost) {
  Start({"self", "a", "b"});
  Store("b", 0, 16);
  peers_.at("b").answers.DelayAnswers(seconds(60));
  peers_.at("b").blocks.DelayAnswers(seconds(60));
  EXPECT_EQ(Locate(16), std::nullopt);
  clock_.Advance(milliseconds(15));
  timers_.RunDue();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_THAT(*answer_, StatusIs(StatusCode::kDeadlineExceeded, _));
  // A later answer is dropped.
  answer_.reset();
  clock_.Advance(seconds(60));
  peers_.RunDue();
  EXPECT_EQ(answer_, std::nullopt);
  EXPECT_EQ(timers_.pending(), 0u);
}

TEST_F(PeerSourceTest, WhatWasFoundBeforeTheDeadlineCounts) {
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  Store("b", 8, 16);
  peers_.at("b").blocks.DelayAnswers(seconds(60));
  EXPECT_EQ(Locate(16), std::nullopt);
  clock_.Advance(milliseconds(15));
  timers_.RunDue();
  ASSERT_TRUE(answer_.has_value());
  ASSERT_OK(*answer_);
  ASSERT_EQ((*answer_)->runs.size(), 1u);
  EXPECT_EQ((*answer_)->runs[0].blocks, 8u);
}

TEST_F(PeerSourceTest, LookupsEndBeforeTheirCallerGivesUp) {
  Start({"self", "a"});
  Store("a", 0, 4);
  peers_.at("a").answers.DelayAnswers(seconds(60));
  peers_.at("a").blocks.DelayAnswers(seconds(60));
  EXPECT_EQ(Locate(4, milliseconds(8)), std::nullopt);
  clock_.Advance(milliseconds(6));
  timers_.RunDue();
  EXPECT_FALSE(answer_.has_value());
  clock_.Advance(milliseconds(1));
  timers_.RunDue();
  EXPECT_TRUE(answer_.has_value());
}

TEST_F(PeerSourceTest, AReadTurnsToTheNextHolder) {
  Start({"self", "a", "b"});
  Store("a", 0, 4);
  Store("b", 0, 4);
  ASSERT_THAT(Runs(4), ::testing::ElementsAre(4));
  const std::string first = peers_.at("a").matches == 1 ? "a" : "b";
  const std::string second = first == "a" ? "b" : "a";
  EXPECT_THAT(Read(0), ::testing::Optional(OkStatus()));
  EXPECT_EQ(peers_.at(first).reads, 1);
  EXPECT_EQ(peers_.at(second).reads, 0);
  // Wrong bytes, an evicted block, silence.
  peers_.at(first).blocks.FlipBytes(1);
  EXPECT_THAT(Read(1), ::testing::Optional(OkStatus()));
  peers_.at(first).blocks.Remove(ns_, Key(2));
  EXPECT_THAT(Read(2), ::testing::Optional(OkStatus()));
  peers_.at(first).blocks.DelayAnswers(seconds(60));
  EXPECT_EQ(Read(3), std::nullopt);
  clock_.Advance(milliseconds(250));
  peers_.RunDue();
  EXPECT_THAT(read_, ::testing::Optional(OkStatus()));
  EXPECT_EQ(peers_.at(second).reads, 3);
}

TEST_F(PeerSourceTest, AMemberThatSendsWrongBytesIsSkippedForAWhile) {
  // The holders are looked up each time.
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  Store("b", 0, 8, TierClass::kDisk);
  ASSERT_THAT(Runs(8), ::testing::ElementsAre(8));
  ASSERT_EQ(peers_.at("a").matches, 1);
  for (uint64_t n = 0; n < PeerHealth::kWrong; ++n) {
    EXPECT_TRUE(source_->health().Hopeful("a")) << n;
    peers_.at("a").blocks.FlipBytes(1);
    EXPECT_THAT(Read(n), ::testing::Optional(OkStatus())) << "from the other one";
  }
  EXPECT_FALSE(source_->health().Hopeful("a"));
  EXPECT_TRUE(source_->health().SkippedForWrong("a"));
  EXPECT_EQ(source_->counts().wrong_reads, PeerHealth::kWrong);
  const int reads = peers_.at("a").reads, matches = peers_.at("a").matches;
  EXPECT_THAT(Read(7), ::testing::Optional(OkStatus()));
  EXPECT_THAT(Runs(8), ::testing::ElementsAre(8));
  // Nor does a new process of it change that.
  source_->Renew("a");
  EXPECT_THAT(Read(6), ::testing::Optional(OkStatus()));
  EXPECT_EQ(peers_.at("a").reads, reads);
  EXPECT_EQ(peers_.at("a").matches, matches);
  clock_.Advance(PeerHealth::kWrongPause);
  EXPECT_TRUE(source_->health().Hopeful("a"));
}

TEST_F(PeerSourceTest, ABlockOfAWrongShapeIsTakenElsewhere) {
  Start({"self", "a", "b"});
  Store("a", 0, 1);
  Store("b", 0, 1, TierClass::kDisk);
  ASSERT_THAT(Runs(1), ::testing::ElementsAre(1));
  sink_.refuse_next = Errorf(StatusCode::kInvalidArgument, "parts overlap");
  EXPECT_THAT(Read(0), ::testing::Optional(OkStatus()));
  EXPECT_EQ(peers_.at("b").reads, 1);
  // This node does not ask others for blocks for which it has no room.
  sink_.refuse_next = Errorf(StatusCode::kResourceExhausted, "no room");
  EXPECT_THAT(Read(0), ::testing::Optional(StatusIs(StatusCode::kResourceExhausted, _)));
  EXPECT_EQ(peers_.at("b").reads, 1);
}

TEST_F(PeerSourceTest, ABusyMemberNamesOthers) {
  Start({"self", "a", "b"});
  Store("a", 0, 4);
  ASSERT_THAT(Runs(4), ::testing::ElementsAre(4));
  // "b" has just taken the block, and no directory knows it.
  SourceBlock block;
  block.parts.push_back({{0, 1, 0, 1}, kBytes});
  peers_.at("b").blocks.Put(ns_, Key(0), block, {std::vector<std::byte>(kBytes, std::byte{7})});
  peers_.at("a").others = {"a", "b"};
  EXPECT_THAT(Read(0), ::testing::Optional(OkStatus()));
  EXPECT_EQ(peers_.at("a").reads, 1);
  // Members that name each other are asked again after a pause, until one is free.
  peers_.at("b").others = {"a"};
  EXPECT_EQ(Read(0), std::nullopt);
  const int reads = peers_.at("b").reads;
  peers_.at("b").others.clear();
  timers_.RunDue();
  EXPECT_EQ(peers_.at("b").reads, reads);
  clock_.Advance(milliseconds(5));
  timers_.RunDue();
  EXPECT_THAT(read_, ::testing::Optional(OkStatus()));
}

TEST_F(PeerSourceTest, WhoWasToldIsAskedBeforeTheDirectory) {
  Start({"self", "a", "b", "c"});
  Store("a", 0, 8);
  // Nobody has announced what "b" has.
  peers_.at("b").blocks.Put(ns_, Key(0), OneBlock(),
                            {std::vector<std::byte>(kBytes, std::byte{7})});
  keys_ = Keys(8);
  const std::vector<std::string> told = {"self", "b"};
  std::optional<Result<Located>> answer;
  source_->LocateAt(ns_, keys_, told, clock_.Now() + seconds(1), "trace-77",
                    [&answer](Result<Located> located) { answer = std::move(located); });
  ASSERT_TRUE(answer.has_value());
  ASSERT_OK(*answer);
  ASSERT_EQ((*answer)->runs.size(), 2u);
  EXPECT_EQ((*answer)->runs[0].blocks, 1u);
  EXPECT_EQ((*answer)->runs[1].blocks, 7u);
  EXPECT_EQ(peers_.at("b").matches, 1);
  for (const char* member : {"a", "b"}) {
    EXPECT_THAT(peers_.at(member).traces, ::testing::ElementsAre("trace-77")) << member;
  }
}

TEST_F(PeerSourceTest, WhatWasFoundIsFoundAgainWithoutTheDirectory) {
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  EXPECT_THAT(Runs(8), ::testing::ElementsAre(8));
  const int finds = peers_.at("a").finds + peers_.at("b").finds;
  EXPECT_THAT(Runs(8), ::testing::ElementsAre(8));
  EXPECT_EQ(peers_.at("a").finds + peers_.at("b").finds, finds);
  EXPECT_EQ(peers_.at("a").matches, 2);
}

TEST_F(PeerSourceTest, AMemberThatStaysBusyCostsTheDeadlineAtMost) {
  Start({"self", "a"});
  Store("a", 0, 1);
  ASSERT_THAT(Runs(1), ::testing::ElementsAre(1));
  peers_.at("a").others = {"a"};
  EXPECT_EQ(Read(0), std::nullopt);
  for (int i = 0; i < 300 && !read_; ++i) {
    clock_.Advance(milliseconds(5));
    timers_.RunDue();
  }
  EXPECT_THAT(read_, ::testing::Optional(StatusIs(StatusCode::kResourceExhausted, _)));
  EXPECT_EQ(timers_.pending(), 0u);
}

TEST_F(PeerSourceTest, WhoKnowsOtherBumpsServesNothing) {
  Start({"self", "a", "b"});
  Store("a", 0, 4);
  Store("b", 0, 4);
  peers_.at("a").bumps_digest = 1;
  EXPECT_THAT(Runs(4), ::testing::ElementsAre(4));
  EXPECT_EQ(peers_.at("a").matches + peers_.at("b").matches, differ_.empty() ? 1 : 2);
  // Between the match and the read the other one learns of a bump.
  peers_.at("b").bumps_digest = 1;
  EXPECT_THAT(Read(0), ::testing::Optional(StatusIs(StatusCode::kFailedPrecondition, _)));
  EXPECT_THAT(differ_, ::testing::IsSupersetOf({"a", "b"}));
}

TEST_F(PeerSourceTest, OneThatNobodyLocatedIsNotFound) {
  Start({"self", "a"});
  EXPECT_THAT(Read(0), ::testing::Optional(StatusIs(StatusCode::kNotFound, _)));
}

TEST_F(PeerSourceTest, AClientInAHurryCostsOthersNoHits) {
  Start({"self", "a", "b"}, {.remembered_blocks = 1});
  Store("a", 0, 16);
  // Healthy, but not as fast as the client in a hurry wants it.
  for (const char* member : {"a", "b"}) {
    peers_.at(member).answers.DelayAnswers(milliseconds(2));
    peers_.at(member).blocks.DelayAnswers(milliseconds(2));
  }
  for (int i = 0; i < 100; ++i) {
    for (int call = 0; call < 8; ++call) (void)Locate(16, milliseconds(1));
    Pass(milliseconds(1));
    answer_.reset();
    EXPECT_EQ(Locate(16, milliseconds(500)), std::nullopt);
    Pass(milliseconds(15));
    ASSERT_TRUE(answer_.has_value());
    ASSERT_OK(*answer_);
    ASSERT_EQ((*answer_)->runs.size(), 1u) << i;
    EXPECT_EQ((*answer_)->runs[0].blocks, 16u);
  }
  EXPECT_EQ(source_->health().skipped(), 0u);
}

TEST_F(PeerSourceTest, AMemberThatHangsIsNoticedThoughAllCallersAreInAHurry) {
  Start({"self", "a"}, {.lookup_deadline = milliseconds(15)});
  peers_.at("a").answers.DelayAnswers(seconds(60));
  const int before = peers_.at("a").finds;
  Duration waited{0};
  while (source_->health().skipped() == 0) {
    (void)Locate(16, milliseconds(1));
    Pass(milliseconds(1));
    waited += milliseconds(1);
    ASSERT_LT(waited, milliseconds(100)) << peers_.at("a").finds - before;
  }
  EXPECT_GE(waited, PeerHealth::kFailures * milliseconds(15)) << "it had the node's own time";
  const int finds = peers_.at("a").finds;
  (void)Locate(16, milliseconds(1));
  EXPECT_EQ(peers_.at("a").finds, finds);
  peers_.DropAll();
}

TEST_F(PeerSourceTest, OneCallAtATimeOutlivesItsCaller) {
  Start({"self", "a"});
  peers_.at("a").answers.DelayAnswers(seconds(60));
  for (int i = 0; i < 100; ++i) (void)Locate(16, milliseconds(1));
  EXPECT_EQ(peers_.at("a").answers.waiting(), 100u);
  Pass(milliseconds(1));
  EXPECT_EQ(peers_.at("a").answers.waiting(), 1u);
  EXPECT_EQ(timers_.pending(), 0u) << "nobody waits for it";
  Pass(milliseconds(15));
  EXPECT_EQ(peers_.at("a").answers.waiting(), 0u);
}

TEST_F(PeerSourceTest, AReadInAHurrySaysNothingAboutTheMember) {
  Start({"self", "a"});
  Store("a", 0, 4);
  ASSERT_THAT(Runs(4), ::testing::ElementsAre(4));
  peers_.at("a").blocks.DelayAnswers(milliseconds(2));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Read(0, milliseconds(1)), std::nullopt);
    Pass(milliseconds(1));
    EXPECT_THAT(read_, ::testing::Optional(StatusIs(StatusCode::kDeadlineExceeded, _)));
  }
  EXPECT_EQ(source_->health().skipped(), 0u);
  // One that is silent for as long as it may has failed.
  peers_.at("a").blocks.DelayAnswers(seconds(60));
  for (int i = 0; i < PeerHealth::kFailures; ++i) {
    EXPECT_EQ(source_->health().skipped(), 0u) << i;
    EXPECT_EQ(Read(0), std::nullopt);
    Pass(milliseconds(250));
  }
  EXPECT_EQ(source_->health().skipped(), 1u);
}

TEST_F(PeerSourceTest, NobodyRemembersIdsThatAreMadeUp) {
  Start({"self", "a", "b"});
  Store("a", 0, 4);
  const std::string long_name(100, 'x');
  // A client names holders.
  for (int i = 0; i < 1000; ++i) {
    keys_ = Keys(4);
    const std::vector<std::string> told = {fmt::format("{}{}", long_name, i),
                                           fmt::format("made up {}", i)};
    std::optional<Result<Located>> answer;
    source_->LocateAt(ns_, keys_, told, clock_.Now() + seconds(1), "trace-77",
                      [&answer](Result<Located> located) { answer = std::move(located); });
    ASSERT_TRUE(answer.has_value());
    ASSERT_OK(*answer);
    EXPECT_EQ((*answer)->runs.size(), 1u) << "they take nobody's place";
  }
  const uint64_t bytes = source_->bytes();
  // A busy member names takers, and an owner names holders.
  for (int i = 0; i < 1000; ++i) {
    peers_.at("a").others = {fmt::format("{}{}", long_name, i)};
    EXPECT_EQ(Read(0, milliseconds(1)), std::nullopt);
    Pass(milliseconds(5));
    EXPECT_TRUE(read_.has_value());
  }
  peers_.at("a").others.clear();
  for (const char* owner : {"self", "a", "b"}) {
    peers_.at(owner).made_up = {{long_name}, {"somebody"}};
  }
  EXPECT_THAT(Runs(4), ::testing::ElementsAre(4));
  EXPECT_THAT(Read(0), ::testing::Optional(OkStatus()));
  EXPECT_EQ(source_->health().entries(), 3u) << "the members";
  EXPECT_EQ(source_->bytes(), bytes);
}

TEST_F(PeerSourceTest, ABlockThatIsLentMovesFromDeviceToDevice) {
  Start({"self", "a"});
  StoreOnDevice("a", 5);
  keys_ = {Key(5)};
  source_->Locate(ns_, keys_, clock_.Now() + seconds(1), [](const Result<Located>&) {});
  ASSERT_EQ(Read(5), OkStatus());
  EXPECT_THAT(fetcher_.members, ::testing::ElementsAre("a"));
  EXPECT_THAT(fetcher_.offsets, ::testing::ElementsAre(105u));
  EXPECT_EQ(peers_.at("a").reads, 1) << "it is not streamed";
  const PeerSource::Counts counts = source_->counts();
  EXPECT_EQ(counts.moved_blocks, 1u);
  EXPECT_EQ(counts.moved_bytes, kBytes);
  EXPECT_EQ(counts.read_blocks, 1u);
  EXPECT_EQ(counts.failed_moves, 0u);
}

TEST_F(PeerSourceTest, AMoveThatFailsIsStreamedByTheSameMember) {
  Start({"self", "a"});
  StoreOnDevice("a", 0);
  Runs(1);
  fetcher_.status = Errorf(StatusCode::kDeadlineExceeded, "the bytes did not come in time");
  fetcher_.fill = std::byte{9};
  ASSERT_EQ(Read(0), OkStatus());
  EXPECT_EQ(peers_.at("a").reads, 2);
  EXPECT_EQ(peers_.at("a").lent, 1);
  EXPECT_TRUE(fetcher_.wrong.empty()) << "no bytes came";
  EXPECT_TRUE(source_->health().Hopeful("a")) << "its network is as well as before";
  EXPECT_EQ(source_->counts().failed_moves, 1u);
  EXPECT_EQ(source_->counts().moved_blocks, 0u);
}

TEST_F(PeerSourceTest, WrongBytesOfAMoveAreStreamedAndNobodyIsToBlame) {
  Start({"self", "a"});
  StoreOnDevice("a", 0);
  Runs(1);
  fetcher_.fill = std::byte{9};
  ASSERT_EQ(Read(0), OkStatus());
  EXPECT_THAT(fetcher_.wrong, ::testing::ElementsAre("a")) << "the link hears of it";
  EXPECT_EQ(source_->counts().wrong_moves, 1u);
  EXPECT_EQ(source_->counts().failed_moves, 1u);
  EXPECT_EQ(source_->counts().wrong_reads, 0u);
}

TEST_F(PeerSourceTest, WhereNoMoveIsPossibleNoneIsAskedFor) {
  Start({"self", "a"});
  StoreOnDevice("a", 0);
  Runs(1);
  fetcher_.may = false;
  ASSERT_EQ(Read(0), OkStatus());
  EXPECT_EQ(peers_.at("a").lent, 0);
  EXPECT_EQ(peers_.at("a").reads, 1);
}

TEST_F(PeerSourceTest, ANodeThatDoesNotWantTheBytesMovesNothing) {
  Start({"self", "a"});
  StoreOnDevice("a", 0);
  Runs(1);
  sink_.refuse_next = Errorf(StatusCode::kResourceExhausted, "no room");
  const auto read = Read(0);
  ASSERT_TRUE(read.has_value());
  EXPECT_THAT(*read, StatusIs(StatusCode::kResourceExhausted, _));
  EXPECT_TRUE(fetcher_.members.empty());
}

TEST_F(PeerSourceTest, AReadWaitsForItsMove) {
  Start({"self", "a"});
  StoreOnDevice("a", 0);
  Runs(1);
  fetcher_.wait = true;
  EXPECT_FALSE(Read(0).has_value());
  fetcher_.waiting(OkStatus());
  EXPECT_EQ(read_, OkStatus());
}

}  // namespace
}  // namespace cairn::cache
