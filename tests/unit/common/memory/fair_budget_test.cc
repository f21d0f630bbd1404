#include "common/memory/fair_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace cairn {
namespace {

// Keeps what it is given.
struct Waiter final : FairBudget::Waiter {
  void OnRoom(ByteShare share) override {
    ++told;
    room = std::move(share);
  }
  int told = 0;
  ByteShare room;
};

std::shared_ptr<FairBudget> BudgetOf(uint64_t bytes) { return std::make_shared<FairBudget>(bytes); }

TEST(ByteShareTest, GoesBackWithItsHolderWhereverThatIs) {
  const auto budget = std::make_shared<FairBudget>(100);
  {
    ByteShare share(budget);
    EXPECT_TRUE(share.Resize(40));
    EXPECT_FALSE(share.Resize(80));  // It would hold more than it leaves to others.
    EXPECT_EQ(share.bytes(), 40u);
    ByteShare moved = std::move(share);
    EXPECT_EQ(budget->used(), 40u);
    EXPECT_TRUE(moved.Resize(10));
    EXPECT_EQ(budget->used(), 10u);
    ByteShare other = moved.Another();
    EXPECT_TRUE(other.Resize(20));
    EXPECT_EQ(budget->used(), 30u);
    moved = std::move(other);
    EXPECT_EQ(budget->used(), 20u);
  }
  EXPECT_EQ(budget->used(), 0u);
}

TEST(ByteShareTest, OfNoBudgetItRefusesNothing) {
  ByteShare share;
  EXPECT_TRUE(share.Resize(uint64_t{1} << 60));
  share.Clear();
  EXPECT_EQ(share.bytes(), 0u);
}

TEST(ByteShareTest, SharesOfOneNameAreOneParty) {
  const auto budget = BudgetOf(100);
  ByteShare first(budget, "a"), second = first.Another(), other(budget, "b");
  EXPECT_TRUE(first.Resize(40));
  EXPECT_FALSE(second.Resize(30)) << "a would hold 70 of 100 bytes";
  EXPECT_TRUE(second.Resize(10));
  EXPECT_EQ(budget->used_by("a"), 50u);
  EXPECT_TRUE(other.Resize(50)) << "the first of another party";
}

TEST(ByteShareTest, LeavesFreeWhatItIsToldTo) {
  const auto budget = BudgetOf(100);
  ByteShare share(budget);
  EXPECT_FALSE(share.Resize(51, 50));
  EXPECT_TRUE(share.Resize(50, 50));
}

TEST(ByteShareTest, NoNumberIsTooLarge) {
  const auto budget = BudgetOf(100);
  ByteShare share(budget);
  EXPECT_FALSE(share.Resize(UINT64_MAX));
  EXPECT_FALSE(share.Resize(1, UINT64_MAX));
  EXPECT_TRUE(share.Resize(1));
  EXPECT_FALSE(share.Resize(UINT64_MAX));
  EXPECT_EQ(budget->used(), 1u);
}

TEST(FairBudgetTest, WhoCameFirstIsToldFirst) {
  const auto budget = BudgetOf(100);
  Waiter a, b, c, d;
  auto first = budget->TakeOrWait("a", 60, &a);
  ASSERT_TRUE(first);
  EXPECT_FALSE(budget->TakeOrWait("b", 60, &b));
  EXPECT_FALSE(budget->TakeOrWait("c", 30, &c)) << "there is room, but somebody came before";
  EXPECT_FALSE(ByteShare(budget).Resize(30)) << "nor does a share overtake them";
  EXPECT_TRUE(budget->short_of_room());
  first.reset();
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(c.told, 1);
  EXPECT_FALSE(budget->short_of_room());
  EXPECT_FALSE(budget->TakeOrWait("d", 20, &d)) << "those who were told have their room";
  EXPECT_EQ(b.room.bytes() + c.room.bytes(), budget->used());
  EXPECT_EQ(budget->used(), 90u);
  budget->Forget(&d);
}

TEST(FairBudgetTest, WhatIsNotNeededGoesToOthers) {
  const auto budget = BudgetOf(100);
  Waiter a, b;
  auto share = budget->TakeOrWait("a", 100, &a);
  EXPECT_FALSE(budget->TakeOrWait("b", 70, &b));
  share->ShrinkTo(30);
  EXPECT_EQ(b.told, 1);
  EXPECT_EQ(budget->used(), 100u);
}

TEST(FairBudgetTest, AShareMayShrinkToNothing) {
  // As of a frame that only says what was matched.
  const auto budget = BudgetOf(100);
  Waiter a;
  auto share = budget->TakeOrWait("a", 100, &a);
  share->ShrinkTo(0);
  EXPECT_EQ(budget->used(), 0u);
  share.reset();
  EXPECT_EQ(budget->used(), 0u);
  EXPECT_TRUE(budget->TakeOrWait("b", 100, &a));
}

TEST(FairBudgetTest, WhoForgetsIsNotTold) {
  const auto budget = BudgetOf(100);
  Waiter a, b, c;
  auto share = budget->TakeOrWait("a", 100, &a);
  EXPECT_FALSE(budget->TakeOrWait("b", 70, &b));
  EXPECT_FALSE(budget->TakeOrWait("c", 70, &c));
  EXPECT_TRUE(budget->Forget(&b));
  EXPECT_FALSE(budget->Forget(&b));
  share.reset();
  EXPECT_EQ(b.told, 0);
  EXPECT_EQ(c.told, 1);
  EXPECT_FALSE(budget->Forget(&c)) << "told already";
}

TEST(FairBudgetTest, APartyTakesHalfOfWhatOthersLeave) {
  const auto budget = BudgetOf(100);
  Waiter waiters[32], other;
  std::vector<std::optional<ByteShare>> shares;
  // Holders of one party that give nothing back.
  for (Waiter& waiter : waiters) shares.push_back(budget->TakeOrWait("greedy", 10, &waiter));
  EXPECT_EQ(budget->used(), 50u);
  EXPECT_TRUE(budget->short_of_room()) << "so that those who give nothing back are cut off";
  EXPECT_TRUE(budget->TakeOrWait("honest", 10, &other)) << "others do not wait behind them";
  shares[0].reset();
  EXPECT_EQ(waiters[5].told, 1) << "each that goes lets one of its own in, in their order";
  EXPECT_EQ(waiters[6].told, 0);
  for (Waiter& waiter : waiters) budget->Forget(&waiter);
}

TEST(FairBudgetTest, ManyGreedyPartiesLeaveTheirShare) {
  const auto budget = BudgetOf(1000);
  std::vector<ByteShare> shares;
  for (int round = 0; round < 100; ++round) {
    for (const char* party : {"a", "b", "c"}) {
      if (ByteShare share(budget, party); share.Resize(10)) shares.push_back(std::move(share));
    }
  }
  EXPECT_EQ(budget->used(), 750u);
  EXPECT_TRUE(ByteShare(budget, "d").Resize(10));
}

TEST(FairBudgetTest, AWaiterForMoreThanTheWholeBudgetGetsAllOfIt) {
  const auto budget = BudgetOf(100);
  Waiter a;
  const auto share = budget->TakeOrWait("a", 1000, &a);
  EXPECT_EQ(budget->used(), 100u);
}

TEST(FairBudgetTest, SharesKeepTheBudget) {
  std::optional<ByteShare> share;
  Waiter a, b;
  {
    const auto budget = BudgetOf(100);
    share = budget->TakeOrWait("a", 70, &a);
    EXPECT_FALSE(budget->TakeOrWait("b", 60, &b));
  }
  // gRPC lets go of bytes in its own time.
  share->ShrinkTo(50);
  EXPECT_EQ(b.told, 0) << "50 of 100 bytes are in use, and it waits for 60";
  share.reset();
  EXPECT_EQ(b.told, 1);
}

// The budget in the plainest words: all shares in a row, summed up for each question.
class Model {
 public:
  explicit Model(uint64_t capacity) : capacity_(capacity) {}

  struct Held {
    std::string party;
    uint64_t bytes;
  };
  struct Asked {
    size_t id;  // Of the holder.
    std::string party;
    uint64_t bytes;
  };

  uint64_t used() const {
    return std::accumulate(held_.begin(), held_.end(), uint64_t{0},
                           [](uint64_t sum, const auto& h) { return sum + h.second.bytes; });
  }
  uint64_t UsedBy(size_t id, const std::string& party) const {
    uint64_t sum = 0;
    for (const auto& [holder, held] : held_) {
      if (party.empty() ? holder == id : held.party == party) sum += held.bytes;
    }
    return sum;
  }
  bool MayHave(const Asked& ask, uint64_t keep_free) const {
    const uint64_t free = capacity_ - used(), has = UsedBy(ask.id, ask.party);
    return ask.bytes + keep_free <= free && (has == 0 || has + ask.bytes <= free);
  }
  bool HasItsShare(const Asked& ask) const {
    const uint64_t has = UsedBy(ask.id, ask.party);
    return has > 0 && has + ask.bytes > capacity_ - used();
  }
  bool Take(const Asked& ask, uint64_t keep_free) {
    const bool in_line =
        std::all_of(line_.begin(), line_.end(), [this](const Asked& w) { return HasItsShare(w); });
    if (!in_line || !MayHave(ask, keep_free)) return false;
    Give(ask);
    return true;
  }
  void Wait(const Asked& ask) { line_.push_back(ask); }
  bool Forget(size_t id) {
    return std::erase_if(line_, [id](const Asked& w) { return w.id == id; }) > 0;
  }
  // Those who were told, in their order.
  std::vector<size_t> ShrinkTo(size_t id, uint64_t bytes) {
    const auto held = held_.find(id);
    if (held == held_.end() || bytes >= held->second.bytes) return {};
    held->second.bytes = bytes;
    std::vector<size_t> told;
    for (auto next = line_.begin(); next != line_.end();) {
      if (HasItsShare(*next)) {
        ++next;
        continue;
      }
      if (!MayHave(*next, 0)) break;
      Give(*next);
      told.push_back(next->id);
      next = line_.erase(next);
    }
    return told;
  }

 private:
  void Give(const Asked& ask) {
    Held& held = held_[ask.id];
    held.party = ask.party;
    held.bytes += ask.bytes;
  }

  const uint64_t capacity_;
  std::map<size_t, Held> held_;
  std::deque<Asked> line_;
};

// A holder of a share, which it has or waits for.
struct Holder final : FairBudget::Waiter {
  void OnRoom(ByteShare given) override {
    share = std::move(given);
    told->push_back(id);
  }
  size_t id = 0;
  std::string party;
  std::vector<size_t>* told = nullptr;
  ByteShare share;
  bool waits = false;
};

TEST(FairBudgetModelTest, DoesWhatTheModelDoes) {
  constexpr uint64_t kCapacity = 1000;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto budget = BudgetOf(kCapacity);
    Model model(kCapacity);
    std::vector<size_t> told;
    std::vector<Holder> holders(12);
    for (size_t i = 0; i < holders.size(); ++i) {
      holders[i].id = i;
      holders[i].told = &told;
      if (i % 4 != 0) holders[i].party = std::string(1, static_cast<char>('a' + i % 4));
      holders[i].share = ByteShare(budget, holders[i].party);
    }
    for (int step = 0; step < 300; ++step) {
      Holder& holder = holders[random() % holders.size()];
      const uint64_t bytes = random() % 4 == 0 ? random() % 900 : random() % 90;
      std::vector<size_t> expected;
      told.clear();
      if (holder.waits) {
        if (random() % 8 == 0) {
          EXPECT_EQ(budget->Forget(&holder), model.Forget(holder.id));
          holder.waits = false;
        }
      } else if (bytes <= holder.share.bytes()) {
        expected = model.ShrinkTo(holder.id, bytes);
        holder.share.ShrinkTo(bytes);
      } else if (holder.share.bytes() == 0 && !holder.party.empty() && random() % 2 == 0) {
        const Model::Asked ask{holder.id, holder.party, bytes};
        auto got = budget->TakeOrWait(holder.party, bytes, &holder);
        ASSERT_EQ(got.has_value(), model.Take(ask, 0)) << "seed " << seed << ", step " << step;
        holder.waits = !got;
        if (got) holder.share = *std::move(got);
        if (!got) model.Wait(ask);
      } else {
        const uint64_t keep_free = random() % 3 == 0 ? random() % 300 : 0;
        const Model::Asked ask{holder.id, holder.party, bytes - holder.share.bytes()};
        ASSERT_EQ(holder.share.Resize(bytes, keep_free), model.Take(ask, keep_free))
            << "seed " << seed << ", step " << step;
      }
      ASSERT_EQ(told, expected) << "seed " << seed << ", step " << step;
      for (const size_t id : told) holders[id].waits = false;
      ASSERT_EQ(budget->used(), model.used()) << "seed " << seed << ", step " << step;
      ASSERT_LE(budget->used(), kCapacity);
    }
    for (Holder& holder : holders) budget->Forget(&holder);
    holders.clear();
    EXPECT_EQ(budget->used(), 0u);
  }
}

}  // namespace
}  // namespace cairn
