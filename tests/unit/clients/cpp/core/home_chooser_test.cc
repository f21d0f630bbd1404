// Which node is the home: every way from one address to another, on a fake clock.
#include "clients/cpp/src/core/home_chooser.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Not;

class HomeChooserTest : public ::testing::Test {
 protected:
  using Chooser = std::unique_ptr<HomeChooser>;
  static Chooser Make(HomeChooser::Options options = {}) {
    auto chooser = std::make_unique<HomeChooser>(std::move(options));
    chooser->SetAddresses({"a:1", "b:1", "c:1"});
    return chooser;
  }
  void Use(HomeChooser::Options options) {
    chooser_ = Make(std::move(options));
    order_ = Order();
  }
  // All addresses, the most preferred one first.
  std::vector<std::string> Order() {
    std::vector<std::string> order;
    while (const auto next = chooser_->Next(order, now_)) order.push_back(*next);
    return order;
  }
  const std::string& Home() { return chooser_->Home(now_); }
  std::string Trial() { return chooser_->Trial(now_).value_or("none"); }
  void Saw(const std::string& address, NodeCondition condition) {
    chooser_->Saw(address, condition, now_);
  }
  void Open(const std::string& address) { Saw(address, NodeCondition::kOpen); }
  void Lose(const std::string& address) { Saw(address, NodeCondition::kLost); }
  // Time passes while these are open.
  void Pass(Duration time, const std::vector<std::string>& open) {
    for (const TimePoint end = now_ + time; now_ < end; now_ += milliseconds(500)) {
      for (const std::string& address : open) Open(address);
      chooser_->Improve(now_);
      (void)chooser_->Trial(now_);
    }
  }

  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  Chooser chooser_ = Make({.key = "client"});
  std::vector<std::string> order_ = Order();
};

TEST_F(HomeChooserTest, WithoutAddressesThereIsNone) {
  HomeChooser none({});
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.Home(now_), "");
  EXPECT_EQ(none.Trial(now_), std::nullopt);
  EXPECT_EQ(none.Next({}, now_), std::nullopt);
}

TEST_F(HomeChooserTest, EachKeyHasItsOwnOrderAndClientsSpread) {
  std::map<std::string, int> homes;
  for (int i = 0; i < 300; ++i) {
    const HomeChooser::Options options = {.key = "client " + std::to_string(i)};
    const std::string home = Make(options)->Home(now_);
    EXPECT_EQ(Make(options)->Home(now_), home) << "stable";
    ++homes[home];
  }
  ASSERT_EQ(homes.size(), 3u);
  for (const auto& [address, clients] : homes) EXPECT_GT(clients, 60) << address;
}

TEST_F(HomeChooserTest, ANodeThatGoesMovesOnlyItsOwnClients) {
  for (int i = 0; i < 100; ++i) {
    const auto chooser = Make({.key = std::to_string(i)});
    const std::string before = chooser->Home(now_);
    chooser->Saw("b:1", NodeCondition::kLost, now_);
    if (before == "b:1") {
      EXPECT_NE(chooser->Home(now_), "b:1");
    } else {
      EXPECT_EQ(chooser->Home(now_), before);
    }
  }
}

TEST_F(HomeChooserTest, ALostHomeIsReplacedAtOnceByTheNextInOrder) {
  EXPECT_EQ(Home(), order_[0]);
  EXPECT_EQ(chooser_->changes(), 0u) << "the first is no change";
  Open(order_[0]);
  Lose(order_[0]);
  EXPECT_EQ(Home(), order_[1]);
  Lose(order_[1]);
  EXPECT_EQ(Home(), order_[2]);
  EXPECT_EQ(chooser_->changes(), 2u);
}

TEST_F(HomeChooserTest, AHomeWithoutASessionIsNotLostYet) {
  EXPECT_EQ(Home(), order_[0]);
  Saw(order_[0], NodeCondition::kOpening);
  EXPECT_EQ(Home(), order_[0]);
}

TEST_F(HomeChooserTest, ThePreferredOneIsTriedAfterAPauseAndIsHomeAgainWhenSteady) {
  Home();
  Lose(order_[0]);
  EXPECT_EQ(Home(), order_[1]);
  Open(order_[1]);
  EXPECT_EQ(Trial(), "none") << "not before its pause is over";
  now_ += milliseconds(500);
  EXPECT_EQ(Trial(), order_[0]);
  Pass(seconds(30), {order_[0], order_[1]});
  EXPECT_EQ(Home(), order_[1]) << "30 s are not over";
  Pass(milliseconds(500), {order_[0], order_[1]});
  EXPECT_EQ(Home(), order_[0]);
  EXPECT_EQ(Trial(), "none");
  EXPECT_EQ(chooser_->changes(), 2u);
}

TEST_F(HomeChooserTest, ABreakStartsTheSteadyTimeAgain) {
  Home();
  Lose(order_[0]);
  Home();
  now_ += seconds(1);
  Pass(seconds(29), {order_[0], order_[1]});
  Lose(order_[0]);
  Pass(seconds(29), {order_[0], order_[1]});
  EXPECT_EQ(Home(), order_[1]);
  Pass(seconds(2), {order_[0], order_[1]});
  EXPECT_EQ(Home(), order_[0]);
}

TEST_F(HomeChooserTest, AClosedClientIsNotSteady) {
  Home();
  Lose(order_[0]);
  Home();
  now_ += seconds(1);
  Pass(seconds(29), {order_[0], order_[1]});
  chooser_->Closed(order_[0]);
  now_ += seconds(10);
  chooser_->Improve(now_);
  EXPECT_EQ(Home(), order_[1]);
}

TEST_F(HomeChooserTest, ATrialWithoutASessionEndsAndPausesGrow) {
  Home();
  Lose(order_[0]);
  Home();
  Open(order_[1]);
  std::vector<Duration> pauses;
  for (int i = 0; i < 9; ++i) {
    const TimePoint began = now_;
    while (Trial() == "none") now_ += milliseconds(100);
    pauses.push_back(now_ - began);
    EXPECT_EQ(Trial(), order_[0]);
    now_ += seconds(5);
    EXPECT_EQ(Trial(), "none") << "it had its time";
  }
  EXPECT_EQ(pauses.front(), milliseconds(500));
  EXPECT_EQ(pauses[1], seconds(1));
  EXPECT_EQ(pauses.back(), seconds(30));
}

TEST_F(HomeChooserTest, WhileTheBestIsAwayTheSecondBestIsTriedToo) {
  Home();
  Lose(order_[0]);
  Home();
  Lose(order_[1]);
  EXPECT_EQ(Home(), order_[2]);
  now_ += seconds(1);
  EXPECT_EQ(Trial(), order_[0]);
  now_ += seconds(5);
  EXPECT_EQ(Trial(), order_[1]);
  Pass(seconds(31), {order_[1], order_[2]});
  EXPECT_EQ(Home(), order_[1]);
}

TEST_F(HomeChooserTest, IfAllAreLostTheFirstThatOpensIsHome) {
  Home();
  for (const std::string& address : order_) {
    Lose(address);
    Home();
  }
  EXPECT_EQ(Home(), order_[2]) << "the last one stays";
  EXPECT_EQ(chooser_->Next({}, now_), std::nullopt) << "nobody is asked before a pause is over";
  Open(order_[1]);
  EXPECT_EQ(Home(), order_[1]);
}

TEST_F(HomeChooserTest, IfAllAreLostEachGetsItsChanceAfterItsPause) {
  Home();
  for (const std::string& address : order_) {
    Lose(address);
    Home();
  }
  std::set<std::string> homes;
  for (int i = 0; i < 10; ++i) {
    now_ += milliseconds(600);
    homes.insert(Home());
    Lose(Home());
  }
  EXPECT_EQ(homes.size(), 3u);
}

TEST_F(HomeChooserTest, ACallGoesOnAtThoseThatAreNotLost) {
  Home();
  Lose(order_[1]);
  EXPECT_EQ(chooser_->Next({order_[0]}, now_), order_[2]);
  EXPECT_EQ(chooser_->Next({order_[0], order_[2]}, now_), std::nullopt);
  now_ += seconds(1);
  EXPECT_EQ(chooser_->Next({order_[0]}, now_), order_[2]);
  EXPECT_EQ(chooser_->Next({order_[0], order_[2]}, now_), order_[1]) << "after its pause, last";
}

TEST_F(HomeChooserTest, SameHostGoesBeforeSameZoneAndThatBeforeOthers) {
  Use({.key = "client", .host = "h", .zone = "z"});
  chooser_->Told(order_[2], {.host = "h", .zone = "y"});
  chooser_->Told(order_[1], {.host = "g", .zone = "z"});
  chooser_->Told(order_[0], {.host = "", .zone = ""});
  const std::vector<std::string> wanted = {order_[2], order_[1], order_[0]};
  EXPECT_EQ(Order(), wanted);
}

TEST_F(HomeChooserTest, AClientWithoutAHostIsNearNobody) {
  chooser_->Told(order_[2], {.host = "", .zone = ""});
  EXPECT_EQ(Order(), order_) << "two that say nothing are not on the same host";
}

TEST_F(HomeChooserTest, AddressesOfThisMachineAreTheSameHost) {
  for (const std::string near : {"127.0.0.1:1", "unix:/run/cairn.sock", "[::1]:1"}) {
    for (int i = 0; i < 20; ++i) {
      HomeChooser chooser({.key = std::to_string(i)});
      chooser.SetAddresses({"a:1", near, "b:1"});
      EXPECT_EQ(chooser.Home(now_), near);
      chooser.Told(near, {.host = "elsewhere"});
      EXPECT_EQ(chooser.Next({}, now_), near) << "what it calls itself changes nothing";
    }
  }
}

TEST_F(HomeChooserTest, AClientWithAHostLooksForANodeThereAndMovesAtOnce) {
  Use({.key = "client", .host = "h"});
  EXPECT_EQ(Home(), order_[0]);
  Open(order_[0]);
  chooser_->Told(order_[0], {.host = "g"});
  EXPECT_EQ(Trial(), order_[1]) << "where it is, only a session tells";
  Open(order_[1]);
  chooser_->Told(order_[1], {.host = "f"});
  EXPECT_EQ(Trial(), order_[2]) << "the next one";
  Open(order_[2]);
  chooser_->Told(order_[2], {.host = "h"});
  chooser_->Improve(now_);
  EXPECT_EQ(Home(), order_[2]);
  EXPECT_EQ(Trial(), "none") << "nothing is nearer";
}

TEST_F(HomeChooserTest, ANearNodeThatFailedMustBeSteady) {
  Use({.key = "client", .host = "h"});
  chooser_->Told(order_[2], {.host = "h"});
  EXPECT_EQ(Home(), order_[2]);
  Lose(order_[2]);
  EXPECT_EQ(Home(), order_[0]);
  chooser_->Told(order_[0], {});
  chooser_->Told(order_[1], {});
  now_ += seconds(1);
  EXPECT_EQ(Trial(), order_[2]);
  Pass(seconds(29), {order_[0], order_[2]});
  EXPECT_EQ(Home(), order_[0]);
  Pass(seconds(2), {order_[0], order_[2]});
  EXPECT_EQ(Home(), order_[2]);
}

TEST_F(HomeChooserTest, AClientWithoutHostAndZoneTriesNobody) {
  EXPECT_EQ(Home(), order_[0]);
  Open(order_[0]);
  EXPECT_EQ(Trial(), "none");
}

TEST_F(HomeChooserTest, AddressesComeAndGo) {
  Home();
  Open(order_[0]);
  chooser_->SetAddresses({order_[1], order_[2]});
  EXPECT_EQ(Home(), order_[0]) << "it works";
  Lose(order_[0]);
  EXPECT_EQ(Home(), order_[1]);
  chooser_->SetAddresses({order_[1], order_[2]});
  now_ += seconds(60);
  EXPECT_THAT(Order(), Not(Contains(order_[0])));

  // One that comes is not lost, and if it is preferred, it must be steady.
  chooser_->SetAddresses(order_);
  Open(order_[1]);
  EXPECT_EQ(Trial(), order_[0]);
  Pass(seconds(29), {order_[0], order_[1]});
  EXPECT_EQ(Home(), order_[1]);
  Pass(seconds(2), {order_[0], order_[1]});
  EXPECT_EQ(Home(), order_[0]);
}

}  // namespace
}  // namespace cairn::client
