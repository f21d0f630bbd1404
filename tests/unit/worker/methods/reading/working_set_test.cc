#include "services/worker/methods/reading/working_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace cairn::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr size_t kRowBytes = 8;

// A set of three rows.
class WorkingSetTest : public ::testing::Test {
 protected:
  static WorkingSet Make(VictimRule rule) { return WorkingSet(3, kRowBytes, rule); }
  static std::vector<std::byte> Row(int32_t row, int plane) {
    std::vector<std::byte> bytes(kRowBytes);
    std::memcpy(bytes.data(), &row, sizeof(row));
    std::memcpy(bytes.data() + 4, &plane, sizeof(plane));
    return bytes;
  }
  static int64_t Add(WorkingSet& set, int32_t row, bool stays = false) {
    return set.Add({&row, 1}, Row(row, 0).data(), Row(row, 1).data(), stays);
  }
  static std::vector<int32_t> Missing(WorkingSet& set, std::vector<int32_t> rows) {
    std::vector<int32_t> missing;
    set.NextStep();
    set.Choose(rows, &missing);
    return missing;
  }
};

TEST_F(WorkingSetTest, KeepsBothPlanesOfEachRow) {
  WorkingSet set = Make(VictimRule::kLru);
  for (const int32_t row : {9, 2, 5}) Add(set, row);
  EXPECT_THAT(set.rows(), UnorderedElementsAre(2, 5, 9));
  for (const int32_t row : {9, 2, 5}) {
    const auto slot = static_cast<size_t>(set.SlotOf(row));
    EXPECT_EQ(0, std::memcmp(set.planes() + slot * kRowBytes, Row(row, 0).data(), kRowBytes));
    EXPECT_EQ(0, std::memcmp(set.planes() + (3 + slot) * kRowBytes, Row(row, 1).data(), kRowBytes));
  }
  EXPECT_EQ(set.SlotOf(3), -1);
  EXPECT_THAT(Missing(set, {1, 2, 9, 10}), ElementsAre(1, 10));
}

TEST_F(WorkingSetTest, TheLeastRecentlyChosenRowLeaves) {
  WorkingSet set = Make(VictimRule::kLru);
  for (const int32_t row : {1, 2, 3}) Add(set, row);
  EXPECT_THAT(Missing(set, {1, 3}), IsEmpty());
  set.NextStep();
  Add(set, 4);
  EXPECT_THAT(set.rows(), UnorderedElementsAre(1, 3, 4));
}

TEST_F(WorkingSetTest, TheOldestRowLeaves) {
  WorkingSet set = Make(VictimRule::kFifo);
  for (const int32_t row : {1, 2, 3}) {
    Add(set, row);
    set.NextStep();
  }
  EXPECT_THAT(Missing(set, {1}), IsEmpty());
  set.NextStep();
  Add(set, 4);
  EXPECT_THAT(set.rows(), UnorderedElementsAre(2, 3, 4));
}

TEST_F(WorkingSetTest, TheRowThatWasChosenLeastLeaves) {
  WorkingSet set = Make(VictimRule::kCounter);
  for (const int32_t row : {1, 2, 3}) Add(set, row);
  Missing(set, {1, 2});
  Missing(set, {3});
  Missing(set, {3});
  Missing(set, {2});
  set.NextStep();
  Add(set, 4);
  EXPECT_THAT(set.rows(), UnorderedElementsAre(2, 3, 4));
}

TEST_F(WorkingSetTest, FirstRowsAndThoseOfTheStepStay) {
  WorkingSet set = Make(VictimRule::kLru);
  Add(set, 0, /*stays=*/true);
  Add(set, 1);
  Add(set, 2);
  Missing(set, {1, 2, 7});
  EXPECT_EQ(Add(set, 7), 1) << "every row here stays";
  Missing(set, {2, 7});
  EXPECT_EQ(Add(set, 7), 1) << "row 1 was never read";
  EXPECT_THAT(set.rows(), UnorderedElementsAre(0, 2, 7));
  set.NoteRead();
  Missing(set, {8});
  EXPECT_EQ(Add(set, 8), 0);
  EXPECT_EQ(Add(set, 8), 0) << "it is here already";
  EXPECT_EQ(set.size(), 3);
}

}  // namespace
}  // namespace cairn::worker
