#pragma once
// Time since the last use, in cells that get wider with age: an exponential histogram (Datar,
// Gionis, Indyk, Motwani, SODA 2002).
//
// Time passes in slots of 2.1 s. A cell of level l holds 2^l slots. A level keeps its youngest 6 or
// 7 cells; when it has 8, the two oldest become one cell of the next level. Blocks that are older
// than the last level are in one last cell.
//
//   level 0: | 2 s | 2 s | ...   level 1: | 4 s | 4 s | ...   level 6: | 137 s | ...   older
//
// A block stays in its cell while cells grow together, so a cell is a list or a count that only
// joins others. Not thread-safe.

#include <algorithm>
#include <array>
#include <cstdint>

namespace cairn::cache {

class AgeCells {
 public:
  static constexpr int kLevels = 7;
  static constexpr int kPerLevel = 6;
  static constexpr int kRing = 8;
  static constexpr int kOldest = kLevels * kRing;
  static constexpr int kCells = kOldest + 1;
  // Ages in bins, youngest first: kPerLevel for each level, and one for everything older.
  static constexpr int kBins = kLevels * kPerLevel + 1;
  static constexpr int kTicksPerSlotLog2 = 7;
  static constexpr double kSecondsPerSlot = 0.016777216 * (1 << kTicksPerSlotLog2);

  explicit AgeCells(uint32_t now) { Restart(now); }

  int64_t now_slot() const { return now_; }
  static int64_t SlotOf(uint32_t tick) { return kEpoch + (tick >> kTicksPerSlotLog2); }

  // The cell of a block that was last used then. A use in the future counts as a use now.
  int CellOf(uint32_t tick) const {
    const int64_t age = std::max<int64_t>(now_ - SlotOf(tick), 0);
    return age < kSpan ? cell_of_[static_cast<size_t>(age)] : kOldest;
  }
  // The bin of the age that the cell's blocks have now.
  int BinOf(int cell) const { return bin_of_[static_cast<size_t>(cell)]; }
  // The bin of an age in slots.
  static int BinOfAge(int64_t slots) {
    int level = 0;
    int64_t first = 0;
    while (level < kLevels && slots >= first + (int64_t{kPerLevel} << level)) {
      first += int64_t{kPerLevel} << level++;
    }
    if (level == kLevels) return kBins - 1;
    return level * kPerLevel + static_cast<int>((slots - first) >> level);
  }
  // Slots that a bin lasts. The last one has no end.
  static double WidthOfBin(int bin) { return static_cast<double>(1 << (bin / kPerLevel)); }

  // One slot passes. Calls `join(from, into)` for cells that become one; `from` is then a new one.
  template <typename Join>
  void Advance(Join&& join) {
    ++now_;
    int64_t young = now_;
    for (int level = 0; level < kLevels; ++level, young >>= 1) {
      // Cells of a level begin at an even one, so that two make one of the next level.
      const int64_t start = (young - kPerLevel + 1) & ~int64_t{1};
      for (; start_[level] < start; ++start_[level]) {
        const int from = level * kRing + static_cast<int>(start_[level] & (kRing - 1));
        const int64_t up = start_[level] >> 1;
        const int into = level + 1 == kLevels
                             ? kOldest
                             : (level + 1) * kRing + static_cast<int>(up & (kRing - 1));
        join(from, into);
      }
      young = start_[level] - 1;
    }
    Place();
  }
  // A long time passed, after which everything is in the oldest cell. The caller moves it there.
  void Restart(uint32_t now) {
    now_ = SlotOf(now);
    int64_t young = now_;
    for (int level = 0; level < kLevels; ++level, young >>= 1) {
      start_[level] = (young - kPerLevel + 1) & ~int64_t{1};
      young = start_[level] - 1;
    }
    Place();
  }
  // Slots after which a block is in the oldest cell whatever happens.
  static constexpr int64_t kSpan = int64_t{kPerLevel + 2} << kLevels;

 private:
  // So that no start is negative.
  static constexpr int64_t kEpoch = int64_t{1} << 20;

  void Place() {
    cell_of_.fill(kOldest);
    int64_t young = now_;
    for (int level = 0; level < kLevels; ++level, young >>= 1) {
      for (int64_t at = start_[level]; at <= young; ++at) {
        const int64_t middle = (at << level) + ((int64_t{1} << level) >> 1);
        const auto cell = static_cast<uint8_t>(level * kRing + (at & (kRing - 1)));
        bin_of_[cell] = static_cast<uint8_t>(BinOfAge(std::max<int64_t>(now_ - middle, 0)));
        const int64_t last = std::min(((at + 1) << level) - 1, now_);
        std::fill(cell_of_.begin() + (now_ - last), cell_of_.begin() + (now_ - (at << level)) + 1,
                  cell);
      }
      young = start_[level] - 1;
    }
    bin_of_[kOldest] = kBins - 1;
  }

  int64_t now_ = 0;
  std::array<int64_t, kLevels> start_{};  // The oldest cell of each level.
  std::array<uint8_t, kCells> bin_of_{};
  std::array<uint8_t, static_cast<size_t>(kSpan)> cell_of_{};  // By age in slots.
};

}  // namespace cairn::cache
