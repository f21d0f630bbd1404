#pragma once
// Which chunk of a device's memory is whose, and what is reserved in it. It knows no memory.
//
// A chunk belongs to one tenant at a time, because whoever gets its descriptor can read and write
// all of it. It changes hands only when nothing is reserved in it and no session has it:
//
//   free ─ Claim, Assign ─► of a tenant ─ empty, without sessions ─ Claim of another ─► ...
//
// Thread-compatible.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/cache/store/tier/extent_allocator.h"

namespace cairn::cache {

class ChunkPool {
 public:
  static constexpr uint64_t kPageBytes = 4096;

  // `chunk_bytes`: a multiple of kPageBytes, below 4 GiB.
  ChunkPool(uint32_t chunks, uint64_t chunk_bytes);

  struct Range {
    uint32_t chunk = 0;
    uint64_t offset = 0;  // In the chunk.
  };
  // Room in the tenant's chunks. nullopt: there is none.
  std::optional<Range> Reserve(std::string_view tenant, uint32_t length);
  // Aborts on what is not reserved.
  void Release(const Range& range, uint32_t length);

  // A chunk that may become another tenant's: a free one that has memory, else a free one, else an
  // empty one of a tenant without sessions there. Nobody gets room in it until Assign or Unclaim.
  struct Claimed {
    uint32_t chunk = 0;
    bool used = false;  // It was a tenant's.
  };
  std::optional<Claimed> Claim(std::string_view tenant);
  void Assign(uint32_t chunk, std::string_view tenant);
  // It is free, and has memory or not.
  void Unclaim(uint32_t chunk, bool has_memory);

  // Somebody outside of this process has the chunk.
  void AddSession(uint32_t chunk) { ++chunks_[chunk].sessions; }
  void RemoveSession(uint32_t chunk) { --chunks_[chunk].sessions; }

  // "" for a chunk that is nobody's.
  const std::string& tenant_of(uint32_t chunk) const { return chunks_[chunk].tenant; }
  bool is_owned(uint32_t chunk) const { return chunks_[chunk].state == State::kOwned; }
  uint32_t sessions_of(uint32_t chunk) const { return chunks_[chunk].sessions; }
  // The chunks of the tenant.
  uint32_t chunks_of(std::string_view tenant) const;
  // The tenant has fewer chunks than an equal share of all, and another one has more.
  bool HasLessThanItsShare(std::string_view tenant) const;
  // A chunk of the tenant that has most, in which the least is reserved and that no session has.
  std::optional<uint32_t> ChunkToEmpty(std::string_view for_tenant) const;

  uint32_t chunks() const { return static_cast<uint32_t>(chunks_.size()); }
  uint32_t empty_chunks() const { return allocator_.empty_segments(); }
  uint32_t shared_chunks() const;
  uint64_t used_bytes() const { return allocator_.used_pages() * kPageBytes; }
  uint64_t extents() const { return extents_; }

 private:
  enum class State : uint8_t { kFree, kClaimed, kOwned };
  struct Chunk {
    State state = State::kFree;
    bool has_memory = false;
    uint32_t sessions = 0;
    std::string tenant;
  };
  struct Tenant {
    uint32_t pool = 0;
    uint32_t chunks = 0;
  };

  void TakeFrom(uint32_t chunk);

  const uint32_t pages_per_chunk_;
  ExtentAllocator allocator_;
  const uint32_t closed_pool_;  // The pool of chunks that are nobody's.
  std::vector<Chunk> chunks_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  std::vector<uint32_t> free_pools_;
  uint64_t extents_ = 0;
};

}  // namespace cairn::cache
