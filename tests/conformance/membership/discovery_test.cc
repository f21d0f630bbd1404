// The promises of every discovery, over all of them, with real servers.

#include "common/membership/discovery.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "common/status/matchers.h"
#include "tests/conformance/membership/observer.h"
#include "tests/conformance/membership/worlds.h"

namespace cairn::membership {
namespace {

template <typename W>
class DiscoveryTest : public ::testing::Test {
 protected:
  void Announce(std::vector<int> numbers) { world_.Announce(numbers); }
  void Join(int number) {
    One& one = ones_[number];
    one.discovery = world_.NewDiscovery();
    ASSERT_OK(one.discovery->Start(World::MemberOf(number), one.observer.callback()));
  }
  void Leave(int number) { ones_.at(number).discovery->Stop(); }
  Observer& Of(int number) { return ones_.at(number).observer; }
  const Discovery& DiscoveryOf(int number) { return *ones_.at(number).discovery; }
  static std::vector<std::string> Addresses(const std::vector<int>& numbers) {
    std::vector<std::string> addresses;
    for (const int number : numbers) addresses.push_back(World::AddressOf(number));
    return addresses;
  }

  W world_;

 private:
  struct One {
    Observer observer;
    std::unique_ptr<Discovery> discovery;
  };
  std::map<int, One> ones_;
};

TYPED_TEST_SUITE(DiscoveryTest, Worlds, WorldNames);

TYPED_TEST(DiscoveryTest, AllMembersSeeAllOthersAndThemselves) {
  this->Announce({1, 2, 3});
  for (const int number : {1, 2, 3}) this->Join(number);
  for (const int number : {1, 2, 3}) {
    EXPECT_TRUE(this->Of(number).WaitFor(this->Addresses({1, 2, 3}))) << number;
    EXPECT_TRUE(this->DiscoveryOf(number).health().complete);
    EXPECT_OK(this->DiscoveryOf(number).health().last);
  }
}

TYPED_TEST(DiscoveryTest, MembersComeAndGo) {
  if (!this->world_.changes()) return;
  this->Announce({1, 2});
  this->Join(1);
  this->Join(2);
  ASSERT_TRUE(this->Of(1).WaitFor(this->Addresses({1, 2})));
  this->Announce({1, 2, 3});
  this->Join(3);
  EXPECT_TRUE(this->Of(1).WaitFor(this->Addresses({1, 2, 3})));
  this->Leave(2);
  this->Announce({1, 3});
  EXPECT_TRUE(this->Of(1).WaitFor(this->Addresses({1, 3})));
  EXPECT_TRUE(this->Of(3).WaitFor(this->Addresses({1, 3})));
}

TYPED_TEST(DiscoveryTest, APlaceThatIsAwayChangesNoView) {
  if (!this->world_.changes()) return;
  this->Announce({1, 2});
  this->Join(1);
  this->Join(2);
  ASSERT_TRUE(this->Of(1).WaitFor(this->Addresses({1, 2})));
  const size_t views = this->Of(1).views().size();
  this->world_.GoAway();
  ASSERT_TRUE(Eventually([&] { return !this->DiscoveryOf(1).health().last.ok(); }));
  this->world_.ComeBack();
  ASSERT_TRUE(Eventually([&] { return this->DiscoveryOf(1).health().last.ok(); }));
  // Later members are seen, so the discovery goes on.
  this->Announce({1, 2, 3});
  this->Join(3);
  EXPECT_TRUE(this->Of(1).WaitFor(this->Addresses({1, 2, 3})));
  for (size_t i = views; i < this->Of(1).views().size(); ++i) {
    EXPECT_GE(this->Of(1).views()[i].size(), 2u);
  }
}

TYPED_TEST(DiscoveryTest, OneThatStartsWhileThePlaceIsAwayFindsItLater) {
  if (!this->world_.changes()) return;
  this->Announce({1});
  this->world_.GoAway();
  this->Join(1);
  ASSERT_TRUE(Eventually([&] { return !this->DiscoveryOf(1).health().last.ok(); }));
  EXPECT_THAT(this->Of(1).views(), ::testing::IsEmpty());
  EXPECT_FALSE(this->DiscoveryOf(1).health().complete);
  this->world_.ComeBack();
  EXPECT_TRUE(this->Of(1).WaitFor(this->Addresses({1})));
}

TYPED_TEST(DiscoveryTest, NoViewComesAfterStop) {
  this->Announce({1});
  this->Join(1);
  ASSERT_TRUE(this->Of(1).WaitFor(this->Addresses({1})));
  this->Leave(1);
  const size_t views = this->Of(1).views().size();
  this->Announce({1, 2});
  this->Join(2);
  ASSERT_TRUE(Eventually([&] { return !this->Of(2).views().empty(); }));
  EXPECT_EQ(this->Of(1).views().size(), views);
}

}  // namespace
}  // namespace cairn::membership
