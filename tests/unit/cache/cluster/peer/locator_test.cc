#include "services/cache/cluster/peer/locator.h"

#include <gmock/gmock.h>

#include <cstring>
#include <optional>

#include "common/status/matchers.h"
#include "services/cache/cluster/peer/testing/fake_peers.h"

namespace cairn::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kBlockTokens = 512;  // Each block is a waymark.
constexpr size_t kBytes = 1000;

class LocatorTest : public ::testing::Test {
 protected:
  // Links let go of callbacks before what they call goes.
  ~LocatorTest() override { peers_.DropAll(); }
  void Start(const std::vector<std::string>& ids, Locator::Options options = {}) {
    for (const std::string& id : ids) peers_.Add(id);
    owners_ = std::make_shared<const OwnerMap>(ids);
    search_ = std::make_unique<HolderSearch>(
        HolderSearch::Options{.self = "self"},
        HolderSearch::Dependencies{
            .links = &peers_,
            .directory = &peers_.at("self").directory,
            .bumps_differ = [this](const std::string& member) { differ_.push_back(member); },
            .clock = &clock_});
    search_->SetOwners(owners_);
    clock_.Advance(HolderSearch::Options().settling);
    locator_ = std::make_unique<Locator>(options, search_.get(), &peers_, &timers_, &clock_);
  }
  static BlockKey Key(uint64_t n) {
    BlockKey key;
    std::memcpy(key.bytes.data(), &n, sizeof(n));
    return key;
  }
  void Store(const std::string& id, uint64_t first, uint64_t end) {
    SourceBlock block;
    block.parts.push_back({{0, 1, 0, 1}, kBytes});
    for (uint64_t n = first; n < end; ++n) {
      peers_.at(id).blocks.Put(ns_, Key(n), block, {std::vector<std::byte>(kBytes)});
      peers_.Announce(*owners_, id, HashForWaymark(ns_, Key(n)));
    }
  }
  void Ask(uint64_t count, Duration patience = seconds(1)) {
    std::vector<BlockKey> keys;
    for (uint64_t n = 0; n < count; ++n) keys.push_back(Key(n));
    answer_.reset();
    locator_->Locate({ns_, 0}, keys, kBlockTokens, clock_.Now() + patience,
                     [this](Locations found) { answer_ = std::move(found); });
  }
  // "member blocks", in the order of the answer.
  std::vector<std::string> Told() const {
    std::vector<std::string> told;
    if (!answer_) return {"no answer"};
    for (const LocatedAt& at : answer_->members) {
      told.push_back(fmt::format("{} {}", at.member, at.held.blocks));
    }
    return told;
  }

  const Digest ns_ = Key(1 << 20);
  FakeClock clock_;
  Timers timers_{&clock_};
  testing::FakePeers peers_{&clock_};
  std::shared_ptr<const OwnerMap> owners_;
  std::vector<std::string> differ_;
  std::unique_ptr<HolderSearch> search_;
  std::unique_ptr<Locator> locator_;
  std::optional<Locations> answer_;
};

TEST_F(LocatorTest, TellsWhatEachMemberHoldsFromTheFirstBlockOn) {
  Start({"self", "a", "b", "c", "d"});
  Store("a", 0, 10);
  Store("b", 0, 25);
  Store("c", 5, 20);  // Not the first one.
  Ask(30);
  EXPECT_THAT(Told(), ElementsAre("b 25", "a 10"));
  EXPECT_EQ(answer_->silent, 0u);
  EXPECT_EQ(answer_->members[0].held.bytes, 25 * kBytes);
}

TEST_F(LocatorTest, OfEqualOnesTheFasterComesFirst) {
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  Store("b", 0, 8);
  peers_.at("a").blocks.SetPace(0.002);
  peers_.at("b").blocks.SetPace(0.001);
  Ask(8);
  EXPECT_THAT(Told(), ElementsAre("b 8", "a 8"));
}

TEST_F(LocatorTest, TakesNoLease) {
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  Ask(8);
  EXPECT_EQ(peers_.at("a").matches, 1);
  EXPECT_EQ(peers_.at("a").leases, 0);
}

TEST_F(LocatorTest, AMemberThatIsLateIsSilent) {
  Start({"self", "a", "b"});
  Store("a", 0, 8);
  Store("b", 0, 4);
  peers_.at("a").blocks.DelayAnswers(seconds(60));
  Ask(8, milliseconds(20));
  EXPECT_EQ(answer_, std::nullopt);
  clock_.Advance(milliseconds(20));
  timers_.RunDue();
  EXPECT_THAT(Told(), ElementsAre("b 4"));
  EXPECT_EQ(answer_->silent, 1u);
  // Its answer comes when nobody waits for it any more.
  answer_.reset();
  clock_.Advance(seconds(60));
  peers_.RunDue();
  EXPECT_EQ(answer_, std::nullopt);
  EXPECT_EQ(timers_.pending(), 0u);
}

TEST_F(LocatorTest, AMemberThatKnowsOtherBumpsIsSilentAndTold) {
  Start({"self", "a"});
  Store("a", 0, 8);
  peers_.at("a").bumps_digest = 7;
  Ask(8);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_EQ(answer_->silent, 1u);
  EXPECT_THAT(differ_, ElementsAre("a"));
}

TEST_F(LocatorTest, AsksOnlySoManyMembers) {
  Start({"self", "a", "b", "c"}, {.max_members = 2});
  Store("a", 0, 3);
  Store("b", 0, 8);
  Store("c", 0, 5);
  Ask(8);
  EXPECT_THAT(Told(), ElementsAre("b 8", "c 5"));
  EXPECT_EQ(peers_.at("a").matches, 0);
}

TEST_F(LocatorTest, ACallerWithoutADeadlineWaitsForTheLimitOnly) {
  Start({"self", "a"}, {.longest = milliseconds(100)});
  Store("a", 0, 8);
  peers_.at("a").blocks.HoldAnswers();
  Ask(8, std::chrono::hours(1));
  clock_.Advance(milliseconds(100));
  timers_.RunDue();
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_EQ(answer_->silent, 1u);
  peers_.DropAll();
}

// Nobody needs a session for it.
TEST_F(LocatorTest, CallersInAHurryDoNotMakeAMemberLookSick) {
  Start({"self", "a"});
  Store("a", 0, 8);
  peers_.at("a").blocks.DelayAnswers(milliseconds(2));
  peers_.at("a").answers.DelayAnswers(milliseconds(2));
  const auto pass = [this](int ms) {
    for (int i = 0; i < ms; ++i) {
      clock_.Advance(milliseconds(1));
      peers_.RunDue();
      timers_.RunDue();
    }
  };
  for (int i = 0; i < 50; ++i) {
    for (int call = 0; call < 16; ++call) Ask(8, milliseconds(1));
    pass(1);
    EXPECT_THAT(Told(), IsEmpty());
    Ask(8);
    pass(4);
    ASSERT_THAT(Told(), ElementsAre("a 8")) << i;
  }
  EXPECT_EQ(search_->health().skipped(), 0u);
  EXPECT_EQ(search_->health().entries(), 2u);
}

TEST_F(LocatorTest, ALieAboutMoreBlocksThanWereAskedForIsCut) {
  Start({"self", "a"});
  Store("a", 0, 8);
  peers_.at("a").blocks.Promise(100);
  Ask(8);
  EXPECT_THAT(Told(), ElementsAre("a 8"));
}

TEST_F(LocatorTest, NobodyIsAskedWhereTheDirectoryNamesNobody) {
  Start({"self", "a", "b"});
  Ask(8);
  EXPECT_THAT(Told(), IsEmpty());
  EXPECT_EQ(answer_->silent, 0u);
  EXPECT_EQ(timers_.pending(), 0u);
}

}  // namespace
}  // namespace cairn::cache
