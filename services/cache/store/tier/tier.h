#pragma once
// A tier: a place where the bytes of parts lie. Device, host and disk are tiers.
//
// A tier knows extents, not blocks: it neither hashes, nor counts leases, nor decides what to
// evict. The engine does, and tells it. So a new tier is one new class, and a fake one is a few
// lines.
//
// Life of an extent:  Reserve -> Write (once) -> Read (many) -> Release.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"

namespace cairn::cache {

// Bytes in a tier. `id` means something to its tier only: an arena offset, a record number.
struct Extent {
  uint64_t id = 0;
  uint32_t length = 0;  // Payload bytes as asked for. The tier may allocate more.
  bool operator==(const Extent&) const = default;
};

struct TierStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;  // Allocated, rounding included.
  uint64_t extents = 0;
  uint64_t read_bytes = 0;  // Totals since start.
  uint64_t written_bytes = 0;
  uint64_t io_errors = 0;
};

using IoCallback = std::function<void(Status)>;

// A tenant's extents that lie together, by their ids: [begin, end).
struct TenantGroup {
  std::string tenant;
  uint64_t begin = 0, end = 0;
};

// Thread-safe.
class Tier {
 public:
  virtual ~Tier() = default;
  virtual TierKind kind() const = 0;

  // Takes room for `length` bytes (1 .. max_extent_bytes()). No I/O. RESOURCE_EXHAUSTED when there
  // is none: the caller evicts and tries again.
  virtual Result<Extent> Reserve(uint32_t length) = 0;
  // Gives the room back and forgets the bytes. No I/O on the calling thread. REQUIRES: no Read or
  // Write of it is under way.
  virtual void Release(const Extent& extent) = 0;

  // Asynchronous. `source`, `record` and `destination` stay valid until the callback has run. The
  // callback runs once, on any thread, possibly inside the call, and must not block.
  // `record` is the owner's description of the bytes; a persistent tier returns it at recovery.
  virtual void Write(const Extent& extent, std::string_view record,
                     std::span<const std::byte> source, IoCallback done) = 0;
  // destination.size() == extent.length. NOT_FOUND when the bytes are gone, DATA_LOSS when they
  // cannot be read whole.
  virtual void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) = 0;

  // Reads a part of an extent: the bytes from `offset`, a multiple of kRangeGrain, on. The range
  // ends within the extent. Unlike those of Read, nobody has compared these bytes with anything but
  // in one case: from a range that begins at 0 and has kHeadBytes, DATA_LOSS says that the first
  // kHeadBytes are not those that were written. So a caller who finds there the hashes of what
  // follows can tell its bytes from those of others that lay in the same place.
  // FAILED_PRECONDITION: the tier does not know them before a Read. UNIMPLEMENTED: it reads whole
  // extents only.
  static constexpr uint32_t kRangeGrain = 4096;
  static constexpr uint32_t kHeadBytes = 64;
  virtual void ReadRange(const Extent& /*extent*/, uint64_t /*offset*/,
                         std::span<std::byte> /*destination*/,
                         // NOLINTNEXTLINE(performance-unnecessary-value-param): tiers keep it.
                         IoCallback done) {
    done(Errorf(StatusCode::kUnimplemented, "{} tier: reads whole extents only", Name(kind())));
  }
  // Constant.
  virtual bool reads_ranges() const { return false; }

  // Bytes mapped into this process, valid until Release; empty unless the tier is mapped.
  virtual std::span<std::byte> Map(const Extent& extent) = 0;
  // Whether this process can read and write the tier's bytes in place. Constant.
  virtual bool mapped() const { return false; }

  virtual uint32_t max_extent_bytes() const = 0;
  virtual TierStats GetStats() const = 0;

  // ---- Tiers whose room is divided among tenants ----

  // Reserve for a tenant. Elsewhere all tenants share the room.
  virtual Result<Extent> ReserveOf(std::string_view /*tenant*/, uint32_t length) {
    return Reserve(length);
  }
  // A group that another tenant has, and that this tenant gets once it is empty, as it has less
  // than its share. nullopt: there is nothing of that kind.
  virtual std::optional<TenantGroup> GroupToEmpty(std::string_view /*tenant*/) {
    return std::nullopt;
  }
  // Room comes of the tenant's own extents alone.
  virtual bool divided() const { return false; }

  // ---- Tiers that can be lost, in part or as a whole ----

  // Grows whenever extents are lost.
  virtual uint64_t losses() const { return 0; }
  // The bytes are gone for good, and so is the place where they lay.
  virtual bool IsLost(const Extent& /*extent*/) const { return false; }
};

// Extents that lie together in a tier, so that evicting them together gives room back without
// copying anything.
struct VictimGroup {
  struct Member {
    Extent extent;
    std::string record;
    // Since it was written, or moved, to where it lies; at least this.
    std::chrono::nanoseconds age{0};
  };
  std::vector<Member> members;
  // This many bytes of them may stay: the tier then moves them elsewhere, which is a second write.
  uint64_t keep_bytes = 0;
};

// A tier that outlives the process. Small named records next to the extents hold the state that the
// engine must find again (namespaces).
class PersistentTier : public Tier {
 public:
  // Calls back for every extent whose Write was made durable before the process died, in no order.
  // Once, before any other call but ListMeta. Extents the visitor does not want (returns false) are
  // released.
  using RecoverVisitor = std::function<bool(const Extent& extent, std::string_view record)>;
  virtual Status Recover(const RecoverVisitor& visitor) = 0;

  // The record that came with the extent's Write. NOT_FOUND: there is none. May read a little from
  // disk.
  virtual Result<std::string> RecordOf(const Extent& extent) = 0;

  // Everything whose Write completed before the call survives kill -9 and a power loss after it
  // returns OK. Blocks, but at most for `limit` (then DEADLINE_EXCEEDED) and until `cancelled`,
  // which it asks some times a second, is true (then CANCELLED).
  virtual Status Flush(std::chrono::nanoseconds limit,
                       const std::function<bool()>& cancelled = nullptr) = 0;
  // Without a limit.
  Status Flush() { return Flush(std::chrono::nanoseconds::max()); }

  // The extents that the owner should evict next when the tier is full: it releases the members
  // that it can spare. Each member is named once until it was moved. Empty: the tier has no
  // opinion, and the owner evicts one by one. May read a little from disk.
  virtual VictimGroup NextVictims() { return {}; }

  // Memory that the tier needs to know where its extents lie: it grows with their number, and
  // counts for the index.
  virtual uint64_t MapBytes() const { return 0; }

  // Told of extents whose bytes the tier found damaged by itself, not in answer to a Read, so that
  // the owner drops what points there. Runs on a thread of the tier; must not block. Set it before
  // Recover; nullptr, which waits for a call under way, before the owner goes.
  using DamageListener = std::function<void(const Extent& extent, std::string_view record)>;
  virtual void SetDamageListener(DamageListener /*listener*/) {}

  // Durable when it returns OK. Blocks, for some seconds at most: UNAVAILABLE means that it may
  // come to be durable later.
  virtual Status PutMeta(std::string_view name, std::string_view value) = 0;
  virtual Status DeleteMeta(std::string_view name) = 0;
  // Every (name, value), by name.
  virtual Status ListMeta(
      const std::function<void(std::string_view name, std::string_view value)>& visitor) = 0;
};

}  // namespace cairn::cache
