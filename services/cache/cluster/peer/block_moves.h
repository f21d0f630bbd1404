#pragma once
// Moves of blocks from the GPU of another member to a GPU of this one, as injected dependencies of
// both sides. services/cache/cluster/link has the real ones.
//
//   reader  Read, which the holder may answer by lending ─►              (peer_links.h)
//   holder                 Lend: a copy of the block in a memory of its own ─► where it lies
//   reader  Fetch: memory of the holder ─► memory of the reader ─► host, where hashes are compared
//
// A block that is lent may move or not. Whatever goes wrong, the reader asks for the bytes again,
// and gets them as a stream.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "services/cache/store/source/block_source.h"
#include "services/cache/store/source/device_block.h"

namespace cairn::cache {

// Where a holder has laid out a block for one member: its parts one after the other, in the order
// of the block's parts, each at a multiple of kLentAlignment.
struct LentPlace {
  uint32_t memory = 0;  // The number of the memory at the holder.
  uint64_t offset = 0;  // Bytes, as is what follows.
  uint64_t bytes = 0;
};

struct LentBlock {
  SourceBlock block;
  LentPlace place;
};

inline constexpr uint64_t kLentAlignment = 256;

// How far behind the first part of a lent block each part begins, and at last where the block ends.
inline std::vector<uint64_t> LentOffsets(const SourceBlock& block) {
  std::vector<uint64_t> offsets = {0};
  for (const SourceBlock::Part& part : block.parts) {
    offsets.push_back((offsets.back() + part.bytes + kLentAlignment - 1) / kLentAlignment *
                      kLentAlignment);
  }
  return offsets;
}

// The holder's side. Thread-safe.
class BlockLender {
 public:
  // Not OK: nothing is lent, and the block has to go in another way.
  using LendDone = std::function<void(Result<LentPlace>)>;

  virtual ~BlockLender() = default;
  // Lays the block out for `member`, which may fetch it once, within some seconds. `done` runs
  // once, on any thread, perhaps inside the call, and is short.
  virtual void Lend(const std::string& member, DeviceBlock block, LendDone done) = 0;
};

// The reader's side. Thread-safe.
class BlockFetcher {
 public:
  using FetchDone = std::function<void(Status)>;

  virtual ~BlockFetcher() = default;
  // Whether it is worth while to ask the member for a block that it lends: false while moves from
  // there fail, or bring wrong bytes.
  virtual bool MayFetch(const std::string& member) const = 0;
  // Brings the bytes of each part into its room in memory of the host: one for each part, of which
  // there is at least one. `rooms` are valid until `done` has run. It runs once, on any thread,
  // perhaps inside the call, early enough before `deadline` to take another way. Not OK: the rooms
  // hold anything. Nobody compares hashes.
  virtual void Fetch(const std::string& member, const LentBlock& block,
                     std::vector<std::span<std::byte>> rooms, TimePoint deadline,
                     FetchDone done) = 0;
  // A Fetch from the member brought bytes with other hashes than the block's: `why` says which.
  virtual void NoteWrong(const std::string& member, const Status& why) = 0;
};

}  // namespace cairn::cache
