#pragma once
// The reads of blocks that wait for their turn at a tier. A tier that is not mapped refuses reads
// beyond its queue, and a block may have a thousand parts: so the parts of all blocks together are
// posted in a bounded number, and blocks take turns, a part each.
//
//   Read(parts of a block) ─► line ─► at most kAtOnce at the tier ─► done, once for each part
//
// A tier that goes away and destroys its callbacks ends their parts with CANCELLED.
//
// Thread-safe. It outlives the reads.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

class ReadLine {
 public:
  // Less than any tier takes.
  static constexpr size_t kAtOnce = 256;

  struct Part {
    Extent extent;
    std::span<std::byte> destination;  // As in Tier::Read, or in ReadRange if there is an offset.
    std::optional<uint64_t> offset = std::nullopt;
  };
  // As the callback of Tier::Read, with the number of the part.
  using Done = std::function<void(size_t part, Status status)>;
  // `done` runs once for each part, and is destroyed after the last one. CANCELLED: the tier went
  // away. REQUIRES: `parts` is not empty.
  void Read(Tier* tier, std::vector<Part> parts, Done done);

 private:
  // Parts that one call starts at most, while others are under way and will start more.
  static constexpr size_t kBurst = 64;
  struct Block {
    Tier* tier;
    TierKind kind;
    std::vector<Part> parts;
    Done done;
    size_t next = 0;
  };
  // The block whose part is to be posted next, and the part's number; nullptr: none now.
  std::shared_ptr<Block> Next(size_t started, size_t* part);
  void Pump();
  // A part is over; its end makes room for another one.
  void End(const Block& block, size_t part, Status status);

  Mutex mu_;
  std::deque<std::shared_ptr<Block>> line_ ABSL_GUARDED_BY(mu_);  // Each has parts left.
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
