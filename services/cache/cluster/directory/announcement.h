#pragma once
// A holder's message to an owner about its waymarks.

#include <cstdint>
#include <vector>

#include "services/cache/cluster/directory/directory_table.h"

namespace cairn::cache {

struct AnnouncedWaymark {
  WaymarkHash hash = 0;
  TierClass tier = TierClass::kMemory;
};

// One message of a stream from one holder to one owner.
struct Announcement {
  static constexpr size_t kMost = 4096;  // Waymarks in one message, of all kinds together.

  uint64_t sequence = 0;  // 1, 2, 3, ... since the stream began.
  // All entries of this holder that the owner had will be replaced, once `complete` comes.
  bool begins = false;
  // Nothing is left to tell of what the holder had when the stream began.
  bool complete = false;
  std::vector<AnnouncedWaymark> adds = {};
  std::vector<AnnouncedWaymark> changes = {};  // Told before, with another tier.
  std::vector<WaymarkHash> removes = {};
  // A check of all that was told, this message included: how many waymarks, and all hashes xored.
  uint64_t count = 0, check = 0;

  size_t size() const { return adds.size() + changes.size() + removes.size(); }
};

}  // namespace cairn::cache
