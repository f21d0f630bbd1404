#include "services/cache/cluster/directory/directory.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "common/status/matchers.h"
#include "services/cache/cluster/directory/announcer.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr TierClass kMemory = TierClass::kMemory, kDisk = TierClass::kDisk;

TEST(DirectoryTableTest, TellsHoldersBestTierFirst) {
  DirectoryTable table(1 << 20);
  const HolderNumber a = table.NewHolder(), b = table.NewHolder();
  table.Add(8, {a, kDisk});
  table.Add(8, {b, kMemory});
  EXPECT_THAT(table.Find(8), ElementsAre(HolderEntry{b, kMemory}, HolderEntry{a, kDisk}));
  table.Add(8, {a, kMemory});
  table.Remove(8, b);
  EXPECT_THAT(table.Find(8), ElementsAre(HolderEntry{a, kMemory}));
  table.Remove(8, a);
  EXPECT_EQ(table.entries(), 0u);
}

TEST(DirectoryTableTest, KeepsEightHoldersOfAWaymark) {
  DirectoryTable table(1 << 20);
  std::vector<HolderNumber> holders;
  for (int i = 0; i < 12; ++i) {
    holders.push_back(table.NewHolder());
    table.Add(16, {holders.back(), kDisk});
  }
  EXPECT_THAT(table.Find(16), SizeIs(DirectoryTable::kMostHolders));
  // The places of those that go are there for others.
  table.Remove(16, holders[0]);
  table.Remove(16, holders[11]);  // The newest is always there.
  EXPECT_THAT(table.Find(16), SizeIs(6));
  table.Add(16, {holders[5], kMemory});
  EXPECT_THAT(table.Find(16), SizeIs(7));
  EXPECT_EQ(table.Find(16)[0], (HolderEntry{holders[5], kMemory}));
  for (const HolderNumber holder : holders) table.Remove(16, holder);
  EXPECT_EQ(table.entries(), 0u);
}

TEST(DirectoryTableTest, AHolderThatIsRemovedIsInvisibleAtOnceAndSweptLater) {
  DirectoryTable table(1 << 20);
  const HolderNumber a = table.NewHolder(), b = table.NewHolder();
  for (uint64_t i = 0; i < 1000; ++i) {
    table.Add(i << 50, {a, kDisk});
    if (i % 2 == 0) table.Add(i << 50, {b, kDisk});
  }
  table.RemoveHolder(a);
  EXPECT_THAT(table.Find(uint64_t{1} << 50), IsEmpty());
  EXPECT_THAT(table.Find(uint64_t{2} << 50), SizeIs(1));
  // Its number is not given away while entries have it.
  EXPECT_NE(table.NewHolder(), a);
  while (!table.SweepSome()) {
  }
  EXPECT_EQ(table.entries(), 500u);
  EXPECT_EQ(table.NewHolder(), a);
}

TEST(DirectoryTableTest, ForgetsWhatWasAnnouncedFirst) {
  constexpr uint64_t kBudget = 1 << 20, kMany = 200000;
  DirectoryTable table(kBudget);
  const HolderNumber a = table.NewHolder();
  std::mt19937_64 random(7);
  std::vector<WaymarkHash> hashes;
  for (uint64_t i = 0; i < kMany; ++i) {
    hashes.push_back(random() & ~7ull);
    table.Add(hashes.back(), {a, kDisk});
  }
  EXPECT_LE(table.bytes(), kBudget + (256 << 10));
  EXPECT_EQ(table.entries() + table.forgotten(), kMany);
  EXPECT_THAT(table.Find(hashes.back()), SizeIs(1));
  EXPECT_THAT(table.Find(hashes.front()), IsEmpty());
  EXPECT_GT(table.entries(), kBudget / 100);
}

class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() { directory_.SetMembers({"a", "b"}); }
  Announcement Message(uint64_t sequence, std::vector<WaymarkHash> adds, bool complete = true) {
    Announcement message{.sequence = sequence, .begins = sequence == 1, .complete = complete};
    for (const WaymarkHash hash : adds) {
      message.adds.push_back({hash, kDisk});
      check_ ^= hash;
      ++count_;
    }
    message.count = count_;
    message.check = check_;
    return message;
  }
  std::vector<Holder> Find(WaymarkHash hash) { return directory_.Find({{hash}})[0]; }

  Directory directory_{{}};
  uint64_t count_ = 0, check_ = 0;
};

TEST_F(DirectoryTest, AnswersFromTheOldStreamUntilTheNewOneIsComplete) {
  EXPECT_TRUE(directory_.young());
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {8, 16})));
  EXPECT_TRUE(directory_.young());  // "b" has said nothing.
  count_ = check_ = 0;
  ASSERT_OK(directory_.Apply("a", 2, Message(1, {16, 24}, /*complete=*/false)));
  for (const WaymarkHash hash : {8, 16, 24}) EXPECT_THAT(Find(hash), SizeIs(1)) << hash;
  ASSERT_OK(directory_.Apply("a", 2, Message(2, {32})));
  EXPECT_THAT(Find(8), IsEmpty());
  EXPECT_THAT(Find(16), ElementsAre(Holder{"a", kDisk}));
  count_ = check_ = 0;
  ASSERT_OK(directory_.Apply("b", 1, Message(1, {})));
  EXPECT_FALSE(directory_.young());
}

TEST_F(DirectoryTest, TheStreamOfAnotherProcessEndsTheOneBefore) {
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {8})));
  const Announcement second = Message(2, {16});
  count_ = check_ = 0;
  ASSERT_OK(directory_.Apply("a", 9, Message(1, {24})));
  EXPECT_THAT(directory_.Apply("a", 1, second), StatusIs(StatusCode::kNotFound, HasSubstr("'a'")));
  EXPECT_THAT(Find(24), SizeIs(1));
}

TEST(DirectoryTableTest, HoldersBeyondTheFirstFourStayWhenTheseAreSwept) {
  DirectoryTable table(1 << 20);
  std::vector<HolderNumber> holders;
  for (int i = 0; i < 6; ++i) {
    holders.push_back(table.NewHolder());
    table.Add(8, {holders.back(), kMemory});
  }
  for (int i = 0; i < 4; ++i) table.RemoveHolder(holders[i]);
  while (!table.SweepSome()) {
  }
  EXPECT_THAT(table.Find(8), SizeIs(2));
  table.Remove(8, holders[4]);
  table.Remove(8, holders[5]);
  EXPECT_THAT(table.Find(8), IsEmpty());
  EXPECT_EQ(table.entries(), 0u);
}

TEST_F(DirectoryTest, EightHoldersStayWhenTheirStreamsBeginAgain) {
  std::vector<std::string> ids;
  for (int i = 0; i < 8; ++i) ids.push_back("holder-" + std::to_string(i));
  directory_.SetMembers(ids);
  for (const uint64_t incarnation : {1, 2}) {
    for (const std::string& id : ids) {
      count_ = check_ = 0;
      ASSERT_OK(directory_.Apply(id, incarnation, Message(1, {8}, /*complete=*/false)));
      ASSERT_OK(directory_.Apply(id, incarnation, Message(2, {})));
    }
    EXPECT_THAT(Find(8), SizeIs(8)) << incarnation;
  }
}

TEST_F(DirectoryTest, HoldersThatAreGoneLeaveTheirPlacesAtOnce) {
  std::vector<std::string> ids;
  for (int i = 0; i < 8; ++i) ids.push_back("holder-" + std::to_string(i));
  // Their streams begin again, and no sweep comes between.
  for (const uint64_t incarnation : {1, 2, 3}) {
    directory_.SetMembers({"a"});
    directory_.SetMembers(ids);
    for (const std::string& id : ids) {
      count_ = check_ = 0;
      ASSERT_OK(directory_.Apply(id, incarnation, Message(1, {8})));
    }
    EXPECT_THAT(Find(8), SizeIs(8)) << incarnation;
  }
}

TEST_F(DirectoryTest, AMessageThatComesTwiceCountsOnce) {
  const Announcement first = Message(1, {8});
  ASSERT_OK(directory_.Apply("a", 1, first));
  ASSERT_OK(directory_.Apply("a", 1, first));
  const Announcement second = Message(2, {16});
  ASSERT_OK(directory_.Apply("a", 1, second));
  ASSERT_OK(directory_.Apply("a", 1, second));
  EXPECT_EQ(directory_.SequenceOf("a", 1), 2u);
  const Announcement third = Message(3, {24});
  ASSERT_OK(directory_.Apply("a", 1, third));
  // One that was very late changes nothing.
  EXPECT_THAT(directory_.Apply("a", 1, second),
              StatusIs(StatusCode::kAborted, HasSubstr("before")));
  ASSERT_OK(directory_.Apply("a", 1, Message(4, {32})));
  for (const WaymarkHash hash : {8, 16, 24, 32}) EXPECT_THAT(Find(hash), SizeIs(1)) << hash;
}

TEST_F(DirectoryTest, AStreamThatBeginsAgainWithOtherThingsIsNoRepetition) {
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {8})));
  count_ = check_ = 0;
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {16})));
  EXPECT_THAT(Find(8), IsEmpty());
  EXPECT_THAT(Find(16), SizeIs(1));
}

TEST_F(DirectoryTest, ItSaysWhatItHasOfAStream) {
  EXPECT_EQ(directory_.SequenceOf("a", 1), 0u);
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {8})));
  ASSERT_OK(directory_.Apply("a", 1, Message(2, {16})));
  EXPECT_EQ(directory_.SequenceOf("a", 1), 2u);
  EXPECT_EQ(directory_.SequenceOf("a", 2), 0u);
  // A member that left for a moment is asked for everything again.
  directory_.SetMembers({"b"});
  directory_.SetMembers({"a", "b"});
  EXPECT_EQ(directory_.SequenceOf("a", 1), 0u);
}

TEST_F(DirectoryTest, GapsAndWrongSumsEndAStream) {
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {8})));
  EXPECT_THAT(directory_.Apply("a", 1, Message(3, {24})),
              StatusIs(StatusCode::kAborted, HasSubstr("got number 3, expected 2")));
  EXPECT_THAT(directory_.Apply("a", 1, Message(4, {})),
              StatusIs(StatusCode::kAborted, HasSubstr("number")));
  count_ = check_ = 0;
  Announcement wrong = Message(1, {8});
  ++wrong.count;
  EXPECT_THAT(directory_.Apply("a", 1, wrong), StatusIs(StatusCode::kAborted, HasSubstr("sums")));
  EXPECT_THAT(directory_.Apply("stranger", 1, Message(1, {})),
              StatusIs(StatusCode::kNotFound, HasSubstr("stranger")));
  // Its entries stay until a stream is complete.
  EXPECT_THAT(Find(8), SizeIs(1));
}

TEST_F(DirectoryTest, FloodsAreRefused) {
  Directory small({.max_per_holder = 100});
  small.SetMembers({"a"});
  std::vector<WaymarkHash> many;
  for (uint64_t i = 1; i <= 101; ++i) many.push_back(i * 8);
  EXPECT_THAT(small.Apply("a", 1, Message(1, many)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected at most 100")));
  EXPECT_THAT(small.Find({{8}})[0], IsEmpty());
  Announcement large;
  large.removes.resize(Announcement::kMost + 1);
  EXPECT_THAT(small.Apply("a", 1, large),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("4097 waymarks")));
}

TEST_F(DirectoryTest, MembersThatLeaveTakeTheirEntriesAlong) {
  ASSERT_OK(directory_.Apply("a", 1, Message(1, {8})));
  directory_.SetMembers({"b"});
  EXPECT_THAT(Find(8), IsEmpty());
  while (!directory_.SweepSome()) {
  }
  EXPECT_EQ(directory_.entries(), 0u);
}

// A cluster whose messages get lost, whose members come and go, and whose waymarks change: when all
// is quiet, each waymark is at its two owners, and nothing else is.
class ClusterTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  struct Node {
    Announcer announcer{{.max_waiting = 200}};
    Directory directory{{}};
    std::map<WaymarkHash, TierClass> truth;
    uint64_t incarnation = 0;
    std::set<std::string> open;  // Streams to these are open.
  };
  void Join(const std::string& id) {
    nodes_[id].incarnation = random_();
    View();
  }
  void View() {
    std::vector<std::string> ids;
    for (const auto& [id, node] : nodes_) ids.push_back(id);
    const auto owners = std::make_shared<const OwnerMap>(ids);
    for (auto& [id, node] : nodes_) {
      node.directory.SetMembers(ids);
      node.announcer.SetOwners(owners);
    }
  }
  // Sends one message. `loss`: one in this many is lost; 0: none. False: there was nothing to send.
  bool Send(const std::string& from, const std::string& to, uint64_t loss) {
    Node& holder = nodes_.at(from);
    Directory& owner = nodes_.at(to).directory;
    if (!holder.open.contains(to)) {
      // As a greeting tells.
      const uint64_t told = holder.announcer.SequenceOf(to);
      if (owner.SequenceOf(from, holder.incarnation) != told) holder.announcer.Restart(to);
      holder.open.insert(to);
    }
    const auto message = holder.announcer.Next(to);
    if (!message) return false;
    if (loss != 0 && random_() % loss == 0) {
      if (random_() % 2 == 0) holder.open.erase(to);  // The connection broke.
      return true;
    }
    if (!owner.Apply(from, holder.incarnation, *message).ok()) holder.open.erase(to);
    return true;
  }
  void Quiet() {
    for (bool busy = true; busy;) {
      busy = false;
      for (auto& [id, node] : nodes_) {
        while (!node.announcer.Step()) {
        }
        for (auto& [to, owner] : nodes_) {
          // A message that was lost last is noticed by the next one, or when the stream is opened.
          node.open.erase(to);
          while (Send(id, to, 0)) busy = true;
        }
      }
    }
  }
  void Check() {
    std::vector<std::string> ids;
    std::set<WaymarkHash> all;
    for (const auto& [id, node] : nodes_) {
      ids.push_back(id);
      for (const auto& [hash, tier] : node.truth) all.insert(hash);
    }
    const OwnerMap owners(ids);
    std::map<std::string, size_t> expected;
    for (const WaymarkHash hash : all) {
      std::vector<Holder> holders;
      for (const auto& [id, node] : nodes_) {
        const auto it = node.truth.find(hash);
        if (it != node.truth.end()) holders.push_back({id, it->second});
      }
      for (const std::string& owner : owners.IdsOf(hash)) {
        ++expected[owner];
        EXPECT_THAT(nodes_.at(owner).directory.Find({{hash}})[0],
                    ::testing::UnorderedElementsAreArray(holders));
      }
    }
    for (auto& [id, node] : nodes_) {
      while (!node.directory.SweepSome()) {
      }
      EXPECT_EQ(node.directory.entries(), expected[id]) << id;
      EXPECT_FALSE(node.directory.young());
    }
  }

  std::mt19937_64 random_{GetParam()};
  std::map<std::string, Node> nodes_;
};

TEST_P(ClusterTest, WhenAllIsQuietEachWaymarkIsAtItsTwoOwners) {
  for (const char* const id : {"a", "b", "c"}) Join(id);
  for (int step = 0; step < 6000; ++step) {
    auto at = nodes_.begin();
    std::advance(at, random_() % nodes_.size());
    auto& [id, node] = *at;
    const WaymarkHash hash = (random_() % 3000) * 0x9e3779b97f4a7c15ull & ~7ull;
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: {
        const TierClass tier = random_() % 2 == 0 ? kMemory : kDisk;
        if (node.truth.size() < DirectoryTable::kMostHolders * 400) {
          node.truth[hash] = tier;
          node.announcer.Stored({hash, tier});
        }
        break;
      }
      case 3:
        node.truth.erase(hash);
        node.announcer.Gone(hash);
        break;
      case 4:
        node.announcer.Step();
        break;
      case 5:
      case 6: {
        auto to = nodes_.begin();
        std::advance(to, random_() % nodes_.size());
        Send(id, to->first, 10);
        break;
      }
      case 7:
        if (step % 97 == 0 && nodes_.size() < 7) Join("n" + std::to_string(step));
        if (step % 101 == 0 && nodes_.size() > 2) {
          nodes_.erase(at);
          View();
        }
        break;
    }
  }
  Quiet();
  Check();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClusterTest, ::testing::Range<uint64_t>(1, 41));

}  // namespace
}  // namespace cairn::cache
