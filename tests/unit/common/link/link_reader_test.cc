// Reader and holder of two processes, in one thread.

#include "common/link/link_reader.h"

#include <numeric>

#include "common/status/matchers.h"
#include "tests/unit/common/link/link_world.h"

namespace cairn::link {
namespace {

using cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::AnyOf;
using testing::DirectCalls;
using ::testing::HasSubstr;
using testing::PairMaker;
using testing::World;

// One process: some memory, and the state of its links.
struct Side {
  Side(World* world, PairMaker* maker, size_t size, LinkTable::Options limits)
      : bytes(size), table(limits), history({}, &world->clock) {
    memory = memories.Add(reinterpret_cast<uint64_t>(bytes.data()), size);
    dependencies = {.maker = maker, .memories = &memories, .table = &table, .link = world->links()};
  }
  std::vector<uint8_t> bytes;
  Memories memories;
  uint32_t memory = 0;
  LinkTable table;
  PeerHistory history;
  LinkDependencies dependencies;
};

class LinkReaderTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;

  void Start(LinkOptions reader_options = {.host = "here"},
             LinkOptions holder_options = {.host = "here"}, LinkTable::Options limits = {}) {
    mine_ = std::make_unique<Side>(&world_, &maker_, kBytes, limits);
    theirs_ = std::make_unique<Side>(&world_, &maker_, kBytes,
                                     LinkTable::Options{.most = 100, .most_abandoned = 100});
    std::iota(theirs_->bytes.begin(), theirs_->bytes.end(), 1);
    reader_ =
        std::make_shared<LinkReader>(reader_options, mine_->dependencies, &calls_, &mine_->history);
    holder_options_ = holder_options;
    AddHolder("holder");
  }
  void AddHolder(const std::string& name) {
    histories_.push_back(std::make_unique<PeerHistory>(PeerHistory::Options{}, &world_.clock));
    calls_.holders[name] = std::make_shared<LinkHolder>(
        holder_options_, theirs_->dependencies,
        [this](const std::string&, const Plan&) -> Result<std::shared_ptr<void>> {
          if (!grant_.ok()) return grant_;
          return granted_;
        },
        histories_.back().get());
  }
  ~LinkReaderTest() override {
    if (reader_ == nullptr) return;
    reader_->Stop();
    mine_->table.EndAll();
    theirs_->table.EndAll();
    world_.Finish();
    EXPECT_EQ(mine_->table.stats().links, 0u);
    EXPECT_EQ(theirs_->table.stats().links, 0u);
  }
  // `bytes` from `offset` on, to the same place.
  Plan PlanOf(uint64_t offset, uint64_t bytes) const {
    return {{{.source = theirs_->memory,
              .source_offset = offset,
              .target = mine_->memory,
              .target_offset = offset,
              .bytes = bytes}}};
  }
  // The number of the fetch in results_.
  size_t Fetch(uint64_t offset = 0, uint64_t bytes = 100, Duration timeout = seconds(1),
               const std::string& peer = "holder") {
    const size_t number = results_.size();
    results_.push_back(std::nullopt);
    reader_->Fetch(peer, PlanOf(offset, bytes), keep_, world_.clock.Now() + timeout,
                   [this, number](const Status& status) {
                     EXPECT_FALSE(results_[number].has_value()) << "it ends twice";
                     results_[number] = status;
                   });
    return number;
  }
  Status ResultOf(size_t number) {
    EXPECT_TRUE(results_[number].has_value()) << "it has not ended";
    return results_[number].value_or(Errorf(StatusCode::kUnknown, "it has not ended"));
  }
  bool Same(uint64_t offset, uint64_t bytes) const {
    return std::memcmp(&mine_->bytes[offset], &theirs_->bytes[offset], bytes) == 0;
  }
  LinkTable::Stats stats() const { return mine_->table.stats(); }

  PairMaker maker_;
  World world_;
  DirectCalls calls_;
  LinkOptions holder_options_;
  std::unique_ptr<Side> mine_, theirs_;
  std::vector<std::unique_ptr<PeerHistory>> histories_;
  std::shared_ptr<LinkReader> reader_;
  Status grant_;
  std::shared_ptr<void> granted_ = std::make_shared<int>(0);
  std::shared_ptr<void> keep_ = std::make_shared<int>(0);
  std::vector<std::optional<Status>> results_;
};

TEST_F(LinkReaderTest, PutsWhereWindowsRegisterElseSends) {
  Start();
  const size_t first = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(first));
  EXPECT_TRUE(Same(0, 100));
  EXPECT_FALSE(Same(100, 1));
  // What came later has no window on this link.
  const uint32_t late = theirs_->memories.Add(reinterpret_cast<uint64_t>(theirs_->bytes.data()), 8);
  Plan plan = PlanOf(200, 8);
  plan.pieces[0].source = late;
  plan.pieces[0].source_offset = 0;
  Status sent = Errorf(StatusCode::kUnknown, "");
  reader_->Fetch("holder", plan, nullptr, world_.clock.Now() + seconds(1),
                 [&sent](const Status& status) { sent = status; });
  world_.Advance(milliseconds(5));
  EXPECT_OK(sent);
  EXPECT_EQ(mine_->bytes[200], theirs_->bytes[0]);
  EXPECT_THAT(calls_.ways, ::testing::ElementsAre(Way::kPut, Way::kSend));
  EXPECT_EQ(stats().opened, 1u) << "a link serves many moves";
  EXPECT_EQ(keep_.use_count(), 1);
  EXPECT_EQ(granted_.use_count(), 1);
}

TEST_F(LinkReaderTest, FetchesOfOneLinkWaitForEachOtherAndAreBounded) {
  Start({.host = "here", .most_waiting = 3});
  std::vector<size_t> fetches;
  for (uint64_t i = 0; i < 4; ++i) fetches.push_back(Fetch(i * 100, 100));
  EXPECT_THAT(ResultOf(fetches[3]), StatusIs(StatusCode::kResourceExhausted, _));
  world_.Advance(milliseconds(20));
  for (uint64_t i = 0; i < 3; ++i) EXPECT_OK(ResultOf(fetches[i]));
  EXPECT_TRUE(Same(0, 300));
}

TEST_F(LinkReaderTest, AWrongPlanBreaksNothing) {
  Start();
  EXPECT_THAT(ResultOf(Fetch(kBytes - 10, 11)), StatusIs(StatusCode::kInvalidArgument, _));
  EXPECT_THAT(ResultOf(Fetch(0, 0)), StatusIs(StatusCode::kInvalidArgument, _));
  Plan plan = PlanOf(0, 10);
  plan.pieces[0].source_offset = kBytes;  // Only the holder knows.
  Status refused;
  reader_->Fetch("holder", plan, keep_, world_.clock.Now() + seconds(1),
                 [&refused](const Status& status) { refused = status; });
  grant_ = Errorf(StatusCode::kPermissionDenied, "not yours");
  const size_t denied = Fetch();
  world_.Advance(milliseconds(20));
  EXPECT_THAT(refused, StatusIs(StatusCode::kInvalidArgument, HasSubstr("at 4096")));
  EXPECT_THAT(ResultOf(denied), StatusIs(StatusCode::kPermissionDenied, _));
  EXPECT_EQ(keep_.use_count(), 1);
  grant_ = OkStatus();
  const size_t good = Fetch();
  world_.Advance(milliseconds(20));
  EXPECT_OK(ResultOf(good));
  EXPECT_EQ(stats().broken, 0u);
}

TEST_F(LinkReaderTest, ALateMoveIsGivenUpInTimeAndThePeerLeftAlone) {
  Start();
  maker_.faults.never_moves = true;
  const size_t late = Fetch(0, 100, milliseconds(300)), waiting = Fetch(100, 100, seconds(5));
  world_.Advance(milliseconds(299));
  EXPECT_FALSE(results_[late].has_value());
  world_.Advance(milliseconds(1));
  EXPECT_THAT(ResultOf(late), StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_THAT(ResultOf(waiting), StatusIs(StatusCode::kDeadlineExceeded, _))
      << "it waits for nothing";
  EXPECT_THAT(ResultOf(Fetch()), StatusIs(StatusCode::kUnavailable, HasSubstr("left alone")));
  EXPECT_EQ(calls_.closes, 1);
  maker_.faults = {};
  world_.Advance(seconds(1));
  EXPECT_EQ(keep_.use_count(), 1);
  const size_t again = Fetch();
  world_.Advance(milliseconds(20));
  EXPECT_OK(ResultOf(again)) << "a new epoch";
  EXPECT_EQ(stats().opened, 2u);
  EXPECT_EQ(stats().broken, 1u);
}

TEST_F(LinkReaderTest, AFetchThatIsLateWhileTheLinkJoinsLeavesTheLink) {
  Start();
  calls_.lost = "Open";
  const size_t late = Fetch(0, 100, milliseconds(10)), patient = Fetch(100, 100, seconds(5));
  world_.Advance(milliseconds(10));
  EXPECT_THAT(ResultOf(late), StatusIs(StatusCode::kDeadlineExceeded, _));
  for (const auto& answer : std::exchange(calls_.unanswered, {})) answer();
  world_.Advance(milliseconds(20));
  EXPECT_OK(ResultOf(patient));
  EXPECT_FALSE(Same(0, 1));
  EXPECT_EQ(stats().opened, 1u);
}

TEST_F(LinkReaderTest, AnAnswerThatNeverComesBreaksTheLink) {
  for (const char* call : {"Open", "Move"}) {
    SCOPED_TRACE(call);
    Start();
    calls_.lost = call;
    const size_t fetch = Fetch(0, 100, seconds(20));
    world_.Advance(seconds(21));
    EXPECT_THAT(ResultOf(fetch), StatusIs(StatusCode::kDeadlineExceeded, _));
    EXPECT_EQ(stats().broken, 1u);
    // It comes after all.
    for (const auto& answer : std::exchange(calls_.unanswered, {})) answer();
    world_.Advance(seconds(10));
    EXPECT_EQ(stats().links, 0u);
    EXPECT_EQ(keep_.use_count(), 1);
    calls_.lost = "";
    theirs_->table.EndAll();
    world_.Advance(seconds(10));
  }
}

TEST_F(LinkReaderTest, AHolderThatCannotBeReachedOrMadeNoId) {
  Start();
  calls_.down = true;
  const size_t down = Fetch();
  world_.Run();
  EXPECT_THAT(ResultOf(down), StatusIs(StatusCode::kUnavailable, HasSubstr("no connection")));
  calls_.down = false;
  maker_.id_fails = Errorf(StatusCode::kInternal, "no id");
  world_.Advance(seconds(1));
  const size_t none = Fetch();
  world_.Run();
  EXPECT_THAT(ResultOf(none), StatusIs(StatusCode::kInternal, HasSubstr("no id")));
}

TEST_F(LinkReaderTest, AHolderThatLostTheLinkIsAskedAgainAtOnce) {
  Start();
  const size_t first = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(first));
  AddHolder("holder");  // Its process has started again.
  const size_t second = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_THAT(ResultOf(second), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("epoch")));
  const size_t third = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(third));
  EXPECT_EQ(stats().broken, 0u);
}

TEST_F(LinkReaderTest, TheHolderTakesEachNumberOnce) {
  Start();
  Fetch();
  world_.Advance(milliseconds(5));
  LinkHolder& holder = *calls_.holders["holder"];
  const MoveRequest again{.epoch = 1, .sequence = 1, .plan = PlanOf(0, 1), .timeout = seconds(1)};
  EXPECT_THAT(holder.Move("reader", again),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("sequence")));
  EXPECT_THAT(holder.Move("another", again),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("epoch")));
  EXPECT_THAT(holder.Open("reader", {.epoch = 1, .host = "here", .version = 1}),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("epoch: got 1")));
}

TEST_F(LinkReaderTest, BytesGoToAnotherHostOnlyOverATrustedNetwork) {
  Start({.host = "here"}, {.host = "there"});
  size_t fetch = Fetch();
  world_.Run();
  EXPECT_THAT(ResultOf(fetch), StatusIs(StatusCode::kPermissionDenied, HasSubstr("trusted")));
  // Both have to trust it.
  Start({.host = "here"}, {.host = "there", .trusted_network = true});
  fetch = Fetch();
  world_.Run();
  EXPECT_THAT(ResultOf(fetch), StatusIs(StatusCode::kPermissionDenied, HasSubstr("'there'")));
  theirs_->table.EndAll();
  world_.Advance(seconds(1));
  Start({.host = "here", .trusted_network = true}, {.host = "there", .trusted_network = true});
  fetch = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(fetch));
}

TEST_F(LinkReaderTest, TheLeastUsedLinkMakesRoom) {
  Start({.host = "here"}, {.host = "here"}, {.most = 2});
  for (const char* name : {"a", "b", "c"}) AddHolder(name);
  for (const char* name : {"a", "b", "a"}) {
    const size_t fetch = Fetch(0, 1, seconds(1), name);
    world_.Advance(milliseconds(5));
    EXPECT_OK(ResultOf(fetch));
  }
  EXPECT_EQ(stats().links, 2u);
  const size_t refused = Fetch(0, 1, seconds(1), "c");
  EXPECT_THAT(ResultOf(refused), StatusIs(StatusCode::kResourceExhausted, _));
  world_.Advance(milliseconds(5));
  EXPECT_EQ(stats().closed, 1u);
  for (const char* name : {"c", "a"}) {
    const size_t fetch = Fetch(0, 1, seconds(1), name);
    world_.Advance(milliseconds(5));
    EXPECT_OK(ResultOf(fetch));
  }
  EXPECT_EQ(stats().opened, 3u) << "the link to `a` was used later than that to `b`";
  EXPECT_LE(stats().links, 2u);
}

TEST_F(LinkReaderTest, ALinkThatMovesIsNotClosedForAnother) {
  Start({.host = "here"}, {.host = "here"}, {.most = 1});
  AddHolder("b");
  maker_.faults.never_moves = true;
  const size_t moving = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_THAT(ResultOf(Fetch(0, 1, seconds(1), "b")), StatusIs(StatusCode::kResourceExhausted, _));
  EXPECT_FALSE(results_[moving].has_value());
  world_.Advance(seconds(2));
}

TEST_F(LinkReaderTest, ALinkThatMovedSomethingLatelyIsNotClosedForAnother) {
  Start({.host = "here"}, {.host = "here"}, {.most = 1, .least_rest = seconds(10)});
  AddHolder("b");
  const size_t fetch = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(fetch));
  for (const uint64_t closed : {0, 1}) {
    const size_t refused = Fetch(0, 1, seconds(1), "b");
    EXPECT_THAT(ResultOf(refused), StatusIs(StatusCode::kResourceExhausted, _));
    EXPECT_EQ(stats().closed, closed);
    world_.Advance(seconds(10));
  }
  const size_t late = Fetch(0, 1, seconds(1), "b");
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(late));
}

TEST_F(LinkReaderTest, AfterAbortsThatHangNoMoreCommunicatorsAreMade) {
  Start({.host = "here"}, {.host = "here"}, {.most_abandoned = 1});
  maker_.faults.never_moves = true;
  maker_.faults.may_be_left = true;
  world_.hang.insert("cairn-link-end");
  Fetch();
  world_.Advance(seconds(10));
  EXPECT_EQ(stats().abandoned, 1u);
  EXPECT_EQ(stats().links, 0u);
  EXPECT_GT(keep_.use_count(), 1) << "its bytes stay reserved";
  EXPECT_THAT(ResultOf(Fetch()), StatusIs(StatusCode::kUnavailable, HasSubstr("did not end")));
}

TEST_F(LinkReaderTest, BytesOfAPutStayKeptUntilTheHolderHasEndedToo) {
  Start();
  maker_.faults.never_moves = true;
  // It does not answer Close: nobody knows whether its puts still come.
  Fetch(0, 100, milliseconds(100));
  world_.Advance(milliseconds(50));
  calls_.down = true;
  world_.Advance(seconds(20));
  EXPECT_EQ(stats().links, 0u);
  EXPECT_EQ(keep_.use_count(), 2);
  world_.Advance(seconds(60));
  EXPECT_EQ(keep_.use_count(), 1);
}

TEST_F(LinkReaderTest, BytesOfAPutWhoseHolderDidNotEndStayKept) {
  Start();
  maker_.faults.never_moves = true;
  maker_.faults.may_be_left = true;
  Fetch(0, 100, milliseconds(100));
  world_.Advance(milliseconds(50));
  // Only the holder's thread hangs: the reader's is the second one that is made.
  const auto holder = calls_.holders["holder"];
  world_.hang.insert("cairn-link-end");
  Status closed;
  holder->Close("reader", 1, [&closed](const Status& status) { closed = status; });
  world_.Run();
  world_.hang.clear();
  world_.Advance(milliseconds(500));
  world_.hang.insert("cairn-link-end");
  world_.Advance(seconds(1));
  world_.hang.clear();
  world_.Advance(seconds(100));
  EXPECT_THAT(closed, StatusIs(StatusCode::kAborted, HasSubstr("did not end")));
  EXPECT_EQ(stats().links, 0u);
  EXPECT_EQ(stats().abandoned, 0u);
  EXPECT_EQ(keep_.use_count(), 2);
}

TEST_F(LinkReaderTest, PutsThatTheLibraryRefusesBecomeSends) {
  Start();
  maker_.faults.fail = "Issue";
  const size_t first = Fetch(0, 100, milliseconds(500));
  world_.Advance(milliseconds(500));
  EXPECT_FALSE(ResultOf(first).ok());
  maker_.faults = {};
  world_.Advance(seconds(2));
  const size_t second = Fetch();
  world_.Advance(milliseconds(5));
  EXPECT_OK(ResultOf(second));
  EXPECT_THAT(calls_.ways, ::testing::ElementsAre(Way::kPut, Way::kSend));
}

TEST_F(LinkReaderTest, StopEndsWhatWaits) {
  Start();
  maker_.faults.never_moves = true;
  const size_t moving = Fetch(), waiting = Fetch(100, 100);
  world_.Advance(milliseconds(5));
  reader_->Stop();
  EXPECT_THAT(ResultOf(moving), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(ResultOf(waiting), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(ResultOf(Fetch()), StatusIs(StatusCode::kUnavailable, _));
}

TEST_F(LinkReaderTest, ALinkThatWasPreparedIsThereForTheFirstFetch) {
  Start();
  reader_->Prepare("holder");
  EXPECT_FALSE(reader_->Ready("holder"));
  reader_->Prepare("holder");
  world_.Advance(milliseconds(10));
  EXPECT_TRUE(reader_->Ready("holder"));
  EXPECT_EQ(stats().opened, 1u);
  EXPECT_EQ(stats().joining, 0u);
  const size_t fetch = Fetch();
  world_.Advance(milliseconds(10));
  EXPECT_OK(ResultOf(fetch));
  EXPECT_EQ(stats().opened, 1u);
}

TEST_F(LinkReaderTest, WhoBreaksIsNotPreparedForAWhileAndTheReasonIsTold) {
  std::vector<std::string> told;
  Start();
  auto dependencies = mine_->dependencies;
  dependencies.broke = [&told](const std::string& peer, const Status& why) {
    told.push_back(peer + ": " + Message(why));
  };
  reader_ = std::make_shared<LinkReader>(LinkOptions{.host = "elsewhere"}, dependencies, &calls_,
                                         &mine_->history);
  reader_->Prepare("holder");
  world_.Advance(milliseconds(10));
  EXPECT_FALSE(reader_->Ready("holder"));
  reader_->Prepare("holder");
  EXPECT_EQ(stats().opened, 1u);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], HasSubstr("holder: the peer is on host 'elsewhere'"));
}

}  // namespace
}  // namespace cairn::link
