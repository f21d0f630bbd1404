#pragma once
// Fetches of rows over a same-node session: rows are taken out of the node's memory.
//
// A slice is compared with its writer's hash once, when rows of it are wanted first. How long that
// comparison is valid depends on who can write the memory where the slice lies:
//
//   sealed segment   Nobody but the node can, and it leaves leased blocks alone as long as the
//                    session lives. Rows are copied from there; before they are given out, the
//                    session is asked whether it lives.
//   lent segment     Writers of the tenant can, at any time. The first look copies the slice,
//                    verifies the copy, and hashes each group of 16 neighbouring rows of it. Later
//                    looks copy such groups, and compare the copies.
//
// All of it is forgotten with the lease.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/rows.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/local/arena_map.h"
#include "common/concurrency/mutex.h"
#include "protocol/shm/protocol.h"

namespace cairn::client::local {

class LeasePin;

// Thread-safe: calls take turns, but not while the sink runs.
class LocalRows {
 public:
  // Rows that share a hash of the client's own.
  static constexpr uint32_t kHashedRows = 16;

  // `pin`: the lease that this belongs to, of `blocks` blocks. Groups of blocks that this session
  // cannot read are in the report's rest.
  RowReport Read(LeasePin& pin, uint32_t blocks, const RowsWanted& wanted, RowSink& sink,
                 const FetchOptions& options, TimePoint deadline);

 private:
  struct Slice {
    bool verified = false;
    // Lent segments: of each plane, head and kHashedRows rows.
    std::vector<uint64_t> hashes = {};
  };
  struct Part {
    std::shared_ptr<const ArenaSegment> segment = {};
    std::span<const std::byte> bytes = {};
    format::PartHeader header = {};
    bool changes = false;  // Lies in a lent segment.
    TierKind tier = TierKind::kHost;
    std::vector<Slice> slices = {};  // By layer of the part.
  };
  struct Block {
    enum class State : uint8_t { kUnknown, kHere, kElsewhere, kFailed };
    State state = State::kUnknown;
    MissReason reason = MissReason::kNone;
    std::vector<Part> parts = {};
  };
  // Groups whose rows are gathered and not given out yet.
  struct Batch {
    struct Group {
      size_t number = 0;
      RowsInfo info = {};
      size_t begin = 0, end = 0;  // In `bytes`.
      TierKind tier = TierKind::kHost;
    };
    std::vector<Group> groups = {};
    std::vector<std::byte> bytes = {};
    size_t next = 0;  // The first group of the call that was not looked at.
  };
  class Call;

  // Makes the places of the wanted blocks known, waiting for those that come from disk.
  Status Locate(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes what is known of blocks [begin, end).
  Status Take(Call& call, std::span<const shm::PlaceEntry> places, uint32_t begin, uint32_t end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status Open(Call& call, const shm::PlaceEntry& place, Block* block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gathers some groups from batch->next on.
  void Gather(Call& call, Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Appends the group's rows to `out`. False: they do not match their hash.
  bool GatherGroup(const SliceRows& rows, const RowGroup& group, Part& part, uint32_t layer,
                   std::vector<std::byte>* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same from a lent segment.
  bool GatherChanging(const SliceRows& rows, const RowGroup& group, Part& part, uint32_t layer,
                      std::byte* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Corrupt(Call& call, uint32_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  // The blocks of the lease; none before the first call.
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::byte> copy_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client::local
