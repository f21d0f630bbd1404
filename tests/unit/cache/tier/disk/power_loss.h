#pragma once
// What a power loss may leave of a directory, for tests in this process.
//
// The program that links it has its own fsync, fdatasync and rename: each file below a watched
// directory is copied aside when it was synced. At a loss, every page that was written since then
// is there, is not, is zero, or is torn in its middle; files that were never synced are short,
// empty or away; files that were deleted may be back. Names count as durable when they change: both
// users sync their directories.

#include <cstdint>
#include <random>
#include <string>

namespace cairn::cache::testing {

// One at a time. Thread-safe.
class PowerLoss {
 public:
  struct Style {
    // Of the pages that were not synced, in percent; the rest is as it was before.
    uint32_t kept = 50;
    uint32_t zeroed = 5;
    uint32_t torn = 5;
    bool deleted_come_back = true;
  };

  explicit PowerLoss(std::string directory);
  ~PowerLoss();
  PowerLoss(const PowerLoss&) = delete;

  // Puts into `to`, which must not exist, what a loss at this moment leaves. The watched process
  // goes on.
  void Leave(const std::string& to, const Style& style, std::mt19937_64& random);
  // Syncs of watched files so far.
  uint64_t syncs() const;
};

}  // namespace cairn::cache::testing
