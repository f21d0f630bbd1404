#include "services/cache/store/placement/cairn/age_cells.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace cairn::cache {
namespace {

constexpr uint32_t kSlot = 1u << AgeCells::kTicksPerSlotLog2;

TEST(AgeCellsTest, ABlockIsInTheCellIntoWhichItsCellsWereJoined) {
  std::mt19937 rng(3);
  AgeCells cells(0);
  std::map<uint32_t, int> cell_of;  // By tick.
  for (uint32_t slot = 1; slot < 3000; ++slot) {
    cells.Advance([&](int from, int into) {
      for (auto& [tick, cell] : cell_of) {
        if (cell == from) cell = into;
      }
    });
    const uint32_t tick = slot * kSlot + rng() % kSlot;
    cell_of[tick] = cells.CellOf(tick);
    if (slot % 7 != 0) continue;
    for (const auto& [used, cell] : cell_of) ASSERT_EQ(cells.CellOf(used), cell) << slot;
  }
}

TEST(AgeCellsTest, BinsGrowWithAgeAndFitTheAgeOfTheirBlocks) {
  AgeCells cells(0);
  for (int slot = 1; slot < 2000; ++slot) cells.Advance([](int, int) {});
  int last = -1;
  for (int64_t age = 0; age < 2000; ++age) {
    const auto tick = static_cast<uint32_t>((1999 - age) * kSlot);
    const int bin = cells.BinOf(cells.CellOf(tick));
    EXPECT_GE(bin, last);
    last = bin;
    // A cell is one of a level or the next.
    EXPECT_LE(std::abs(bin - AgeCells::BinOfAge(age)), 2) << age;
  }
  EXPECT_EQ(last, AgeCells::kBins - 1);
  EXPECT_EQ(AgeCells::BinOfAge(0), 0);
}

TEST(AgeCellsTest, WhatIsUsedInTheFutureIsUsedNow) {
  AgeCells cells(100 * kSlot);
  EXPECT_EQ(cells.CellOf(500 * kSlot), cells.CellOf(100 * kSlot));
}

}  // namespace
}  // namespace cairn::cache
