#pragma once
// Empties one segment of the host tier, so that it can be given to somebody else, or hold a part
// that is larger than every hole.
//
//   choose a segment ─► nobody gets room in it ─► each of its blocks, one after the other:
//        room elsewhere, or a less valuable block of the tenant makes it ─► moved
//        neither ─────────────────────────────────────────────────────────► evicted
//   ─► empty: for the one that asked.  Not empty: used as before.
//
// A segment is chosen only if everything in it may go: nothing pinned in its place, reserved or
// half written. A leased block moves as others do, and is evicted only if a slower tier has it.
// So nothing is evicted for a segment that cannot be emptied. A drain evicts at most twice the
// bytes that lay in the segment.
//
// One drain at a time. Thread-safe.

#include <atomic>
#include <optional>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class Drainer {
 public:
  Drainer(NodeContext* context, Evictor* evictor);

  // Empties a segment of others for a room whose owner has less than its share. True when it is
  // empty. False also if a try failed within the last second, because a try looks at all blocks of
  // the tier, and if there are more blocks than anybody but DrainSoon looks at.
  bool Drain(const RoomFor& room);
  // The same on the executor, however many blocks there are.
  void DrainSoon(const RoomFor& room);
  // The same as Drain with one of the room's own segments, so that its free pages lie together.
  bool Compact(const RoomFor& room);

 private:
  struct Found {
    NamespacePtr ns;
    BlockKey key;
    uint64_t rank = 0;
    bool more_below = false;  // Blocks after it on its path.
  };
  enum class Kind : uint8_t { kOfOthers, kOwn };

  bool Run(const RoomFor& room, Kind kind);
  bool Empty(const RoomFor& room, const std::vector<uint32_t>& candidates);
  // The one whose blocks are worth least. nullopt: none can be emptied.
  std::optional<uint32_t> Choose(const std::vector<uint32_t>& candidates);
  // Least valuable first. nullopt: something lies there that is not a block.
  std::optional<std::vector<Found>> BlocksIn(uint32_t segment);
  // Moves the block out of the segment, or evicts it; from elsewhere at most `budget` bytes. False:
  // it has to stay.
  bool Clear(const Found& found, uint32_t segment, uint64_t* budget);
  // Takes room in segments that the tenant has already. Evicts blocks of a rank below `below`, up
  // to `limit` bytes and the budget. Empty: there is none.
  Extents RoomElsewhere(const NamespaceState& ns, std::span<const uint32_t> lengths, uint64_t below,
                        uint64_t limit, uint64_t* budget);

  NodeContext& context_;
  Evictor& evictor_;
  std::atomic<bool> busy_{false};
  std::atomic<TimePoint> next_try_[2] = {};  // By Kind.
  Mutex mu_;
  std::optional<RoomFor> wanted_ ABSL_GUARDED_BY(mu_);
  Pump pump_;
};

}  // namespace cairn::cache
