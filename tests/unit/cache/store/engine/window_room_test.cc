// A window takes what it keeps of its blocks from an account that all fetches share.

#include "services/cache/store/engine/window_room.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using Took = WindowRoom::Took;

constexpr uint64_t kBound = 80'000;
constexpr uint64_t kFloor = 1000;

class WindowRoomTest : public ::testing::Test {
 protected:
  static MemoryAccount::Bounds Bounds() {
    MemoryAccount::Bounds bounds{};
    bounds[static_cast<size_t>(MemoryItem::kFetchHeaders)] = kBound;
    return bounds;
  }
  uint64_t used() const { return account_.used(MemoryItem::kFetchHeaders); }

  MemoryAccount account_{Bounds()};
};

TEST_F(WindowRoomTest, TheFloorCostsNothingMore) {
  WindowRoom room(&account_, kFloor);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(room.Take(100), Took::kTaken);
  EXPECT_EQ(used(), 0u);
  EXPECT_FALSE(room.holds_charge());
  EXPECT_EQ(room.Take(100), Took::kTaken);
  EXPECT_EQ(used(), 100u);
  room.ShrinkTo(500);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(room.used(), 500u);
}

TEST_F(WindowRoomTest, AWindowHasAnEighthAndOneBlockAQuarter) {
  std::optional<WindowRoom> room(std::in_place, &account_, kFloor);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(room->Take(kBound / 80), Took::kTaken) << i;
  EXPECT_EQ(room->Take(1), Took::kFull);
  room.reset();
  EXPECT_EQ(used(), 0u);
  room.emplace(&account_, kFloor);
  EXPECT_EQ(room->Take(kBound / 4 + 1), Took::kNever);
  EXPECT_EQ(room->Take(kBound / 4), Took::kTaken);
  EXPECT_EQ(room->Take(1), Took::kFull);
  EXPECT_EQ(account_.refusals(MemoryItem::kFetchHeaders), 0u);
}

// Whatever has begun, each window finds room for its first block once the other windows are sent.
TEST_F(WindowRoomTest, FetchesThatBeganLeaveRoomForAFirstBlock) {
  std::vector<MemoryCharge> fetches;
  for (;;) {
    auto fetch = ChargeFetch(&account_, 3000);
    if (!fetch.ok()) {
      EXPECT_EQ(fetch.status().code(), StatusCode::kResourceExhausted);
      break;
    }
    fetches.push_back(*std::move(fetch));
  }
  EXPECT_EQ(fetches.size(), kBound / 4 * 3 / 3000);
  std::optional<WindowRoom> a(std::in_place, &account_, kFloor);
  WindowRoom b(&account_, kFloor);
  EXPECT_EQ(a->Take(kBound / 4), Took::kTaken);
  EXPECT_EQ(a->Take(100), Took::kFull);
  EXPECT_EQ(b.Take(kBound / 4), Took::kFull);
  a.reset();
  EXPECT_EQ(b.Take(kBound / 4), Took::kTaken);
}

}  // namespace
}  // namespace cairn::cache
