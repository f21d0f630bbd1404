#include "common/link/link.h"

#include <semaphore>

#include "common/link/lone_thread.h"
#include "common/status/matchers.h"
#include "tests/unit/common/link/link_world.h"

namespace cairn::link {
namespace {

using cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::ElementsAre;
using testing::PairMaker;
using testing::World;
using State = Link::State;

// Two ranks in one process, which move a text.
class LinkTest : public ::testing::Test {
 protected:
  ~LinkTest() override {
    for (const auto& link : links_) {
      if (link != nullptr) link->End(OkStatus());
    }
    world_.Finish();
  }
  std::shared_ptr<Link> NewLink() {
    return std::make_shared<Link>(
        Link::Options{}, world_.links(),
        Link::Events{
            .ending = [this](const Status& why) { endings_.push_back(why); },
            .ended = [this](const Link&, bool abandoned) { ended_.push_back(abandoned); }});
  }
  // Both ranks.
  void Join() {
    for (int rank : {0, 1}) {
      links_[rank] = NewLink();
      links_[rank]->Begin(nullptr);
      links_[rank]->Join(maker_.Make(UniqueId{}, rank, {}));
    }
    world_.Advance(milliseconds(1));
  }
  Link::Transfer Transfer(int rank, Duration timeout = seconds(1)) {
    const auto address =
        rank == 0 ? reinterpret_cast<uint64_t>(to_) : reinterpret_cast<uint64_t>(from_);
    return {.move = {.receives = rank == 0, .parts = {{.address = address, .bytes = sizeof(to_)}}},
            .deadline = world_.clock.Now() + timeout,
            .keep = keep_,
            .done = [this, rank](const Status& status) { done_[rank].push_back(status); }};
  }

  PairMaker maker_;
  World world_;
  std::shared_ptr<Link> links_[2];
  std::vector<Status> endings_;
  std::vector<bool> ended_;
  std::vector<Status> done_[2];
  std::shared_ptr<void> keep_ = std::make_shared<int>(0);
  char from_[6] = "KV KV", to_[6] = {};
};

TEST_F(LinkTest, MovesBytesOnceBothHaveJoined) {
  Join();
  EXPECT_EQ(links_[0]->state(), State::kIdle);
  EXPECT_OK(links_[0]->Start(Transfer(0)));
  EXPECT_OK(links_[1]->Start(Transfer(1)));
  EXPECT_EQ(links_[0]->state(), State::kMoving);
  world_.Advance(milliseconds(2));
  ASSERT_EQ(done_[0].size(), 1u);
  EXPECT_OK(done_[0][0]);
  EXPECT_OK(done_[1].at(0));
  EXPECT_STREQ(to_, from_);
  EXPECT_EQ(keep_.use_count(), 1);
  for (const auto& link : links_) link->End(OkStatus());
  world_.Run();
  EXPECT_EQ(links_[0]->state(), State::kEnded);
  EXPECT_THAT(ended_, ElementsAre(false, false));
}

TEST_F(LinkTest, TransfersThatComeEarlyWaitTheirTurn) {
  links_[1] = NewLink();
  links_[1]->Begin(nullptr);
  links_[1]->Join(maker_.Make(UniqueId{}, 1, {}));
  world_.Run();
  for (size_t i = 0; i < Link::kMostTransfers; ++i) EXPECT_OK(links_[1]->Start(Transfer(1)));
  EXPECT_THAT(links_[1]->Start(Transfer(1)), StatusIs(StatusCode::kResourceExhausted, _));
  links_[0] = NewLink();
  links_[0]->Begin(nullptr);
  links_[0]->Join(maker_.Make(UniqueId{}, 0, {}));
  for (size_t i = 0; i < Link::kMostTransfers; ++i) {
    EXPECT_OK(links_[0]->Start(Transfer(0)));
    world_.Advance(milliseconds(2));
    EXPECT_EQ(done_[1].size(), i + 1);
  }
  for (const auto& link : links_) link->End(OkStatus());
  world_.Run();
}

TEST_F(LinkTest, APeerThatNeverJoinsCostsTheDeadlineOfJoining) {
  maker_.faults.never_joins = true;
  Join();
  world_.Advance(seconds(9));
  EXPECT_EQ(links_[0]->state(), State::kJoining);
  world_.Advance(seconds(2));
  EXPECT_EQ(links_[0]->state(), State::kEnded);
  EXPECT_THAT(endings_.at(0), StatusIs(StatusCode::kDeadlineExceeded, _));
}

TEST_F(LinkTest, ALateMoveEndsAtItsDeadlineAndKeepsItsBytesUntilTheAbort) {
  Join();
  maker_.faults.never_moves = true;
  EXPECT_OK(links_[0]->Start(Transfer(0, milliseconds(100))));
  world_.Advance(milliseconds(99));
  EXPECT_TRUE(done_[0].empty());
  maker_.faults.may_be_left = true;
  world_.hang.insert("cairn-link-end");  // Neither Revoke nor Abort comes back.
  world_.Advance(milliseconds(1));
  ASSERT_EQ(done_[0].size(), 1u);
  EXPECT_THAT(done_[0][0], StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_EQ(links_[0]->state(), State::kEnding);
  world_.Advance(seconds(7));
  EXPECT_EQ(links_[0]->state(), State::kAbandoned);
  EXPECT_THAT(ended_, ElementsAre(true));
  EXPECT_EQ(keep_.use_count(), 2) << "memory that a peer may still write to has been let go of";
}

TEST_F(LinkTest, BytesAreLetGoOfWhenTheAbortHasReturned) {
  Join();
  maker_.faults.never_moves = true;
  EXPECT_OK(links_[0]->Start(Transfer(0, milliseconds(100))));
  EXPECT_TRUE(links_[0]->Hold(std::shared_ptr<void>(keep_)));
  world_.Advance(milliseconds(200));
  EXPECT_EQ(links_[0]->state(), State::kEnded);
  EXPECT_THAT(maker_.log, ElementsAre("revoke", "abort"));
  EXPECT_EQ(keep_.use_count(), 1);
  EXPECT_FALSE(links_[0]->Hold(keep_)) << "a link that has ended cannot keep bytes";
  links_[1]->End(OkStatus());
  world_.Run();
}

TEST_F(LinkTest, EachCallMayFail) {
  for (const char* call : {"Join", "Poll", "Issue"}) {
    SCOPED_TRACE(call);
    maker_.faults.fail = call;
    Join();
    if (std::string(call) == "Issue") {
      EXPECT_OK(links_[0]->Start(Transfer(0)));
      world_.Run();
      EXPECT_THAT(done_[0].at(0), StatusIs(StatusCode::kInternal, _));
    }
    EXPECT_EQ(links_[0]->state(), State::kEnded);
    EXPECT_THAT(endings_.at(0), StatusIs(StatusCode::kInternal, _));
    EXPECT_THAT(links_[0]->Start(Transfer(0)), StatusIs(StatusCode::kFailedPrecondition, _));
    links_[1]->End(OkStatus());
    world_.Run();
    endings_.clear();
    maker_.faults = {};
  }
}

// A call that comes back only when the test says so.
class StuckCommunicator final : public Communicator {
 public:
  Status Join() override {
    entered.release();
    leave.acquire();
    return OkStatus();
  }
  Status Issue(const Move&) override { return OkStatus(); }
  Result<bool> Poll() override { return true; }
  bool puts() const override { return false; }
  void Revoke() override { revoked = true; }
  void Abort() override { aborted = true; }
  std::binary_semaphore entered{0}, leave{0};
  bool revoked = false, aborted = false;
};

TEST_F(LinkTest, AThreadThatHangsInACallHoldsNothingUp) {
  auto dependencies = world_.links();
  const auto threads = dependencies.threads;
  dependencies.threads = [threads](const char* name) -> std::shared_ptr<Executor> {
    if (std::string(name) == "cairn-link") return std::make_shared<LoneThread>(name);
    return threads(name);
  };
  bool ended = false;
  const auto link = std::make_shared<Link>(
      Link::Options{}, dependencies,
      Link::Events{.ended = [&ended](const Link&, bool abandoned) { ended = !abandoned; }});
  const auto stuck = std::make_shared<StuckCommunicator>();
  link->Begin(nullptr);
  EXPECT_TRUE(link->Hold(keep_));
  link->Join(stuck);
  stuck->entered.acquire();
  world_.Advance(seconds(10));
  EXPECT_EQ(link->state(), State::kEnding);
  EXPECT_FALSE(stuck->revoked) << "the thread may still leave its call";
  world_.Advance(milliseconds(200));
  EXPECT_TRUE(stuck->revoked && stuck->aborted && ended);
  EXPECT_FALSE(link->quiet());
  EXPECT_EQ(keep_.use_count(), 2) << "the call may still touch the bytes";
  stuck->leave.release();
  // The thread is real; the clock is not. It lets go of the bytes when it has left the call.
  while (keep_.use_count() > 1) std::this_thread::yield();
  EXPECT_TRUE(link->quiet());
}

TEST_F(LinkTest, ALinkWhoseFirstStepFailsHasNothingToAbort) {
  const auto link = NewLink();
  link->Begin([&link] { link->End(Errorf(StatusCode::kInternal, "no id")); });
  world_.Run();
  EXPECT_EQ(link->state(), State::kEnded);
  EXPECT_TRUE(maker_.log.empty());
  EXPECT_THAT(ended_, ElementsAre(false));
}

TEST_F(LinkTest, ALinkThatWasEndedBeforeItBeganDoesNothing) {
  const auto link = NewLink();
  link->End(OkStatus());
  link->Begin([] { FAIL() << "nobody is to be asked any more"; });
  world_.Run();
  EXPECT_EQ(link->state(), State::kEnded);
  EXPECT_THAT(ended_, ElementsAre(false));
}

}  // namespace
}  // namespace cairn::link
