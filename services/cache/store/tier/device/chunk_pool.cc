#include "services/cache/store/tier/device/chunk_pool.h"

#include <algorithm>

#include "cairn/common/status.h"

namespace cairn::cache {
namespace {

uint32_t PagesOf(uint32_t length) {
  return static_cast<uint32_t>((uint64_t{length} + ChunkPool::kPageBytes - 1) /
                               ChunkPool::kPageBytes);
}

}  // namespace

ChunkPool::ChunkPool(uint32_t chunks, uint64_t chunk_bytes)
    : pages_per_chunk_(static_cast<uint32_t>(chunk_bytes / kPageBytes)),
      allocator_(std::vector<uint32_t>(chunks, pages_per_chunk_)),
      closed_pool_(allocator_.AddPool()),
      chunks_(chunks) {
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) allocator_.SetPool(chunk, closed_pool_);
}

std::optional<ChunkPool::Range> ChunkPool::Reserve(std::string_view tenant, uint32_t length) {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end()) return std::nullopt;
  const auto page = allocator_.Reserve(PagesOf(length), it->second.pool);
  if (!page) return std::nullopt;
  ++extents_;
  return Range{*page / pages_per_chunk_, uint64_t{*page % pages_per_chunk_} * kPageBytes};
}

void ChunkPool::Release(const Range& range, uint32_t length) {
  const auto page =
      range.chunk * pages_per_chunk_ + static_cast<uint32_t>(range.offset / kPageBytes);
  CAIRN_CHECK(allocator_.IsReserved(page, PagesOf(length)));
  allocator_.Release(page, PagesOf(length));
  --extents_;
}

std::optional<ChunkPool::Claimed> ChunkPool::Claim(std::string_view tenant) {
  std::optional<uint32_t> best;
  // Free with memory, free without, a tenant's.
  const auto order = [this](uint32_t chunk) {
    if (chunks_[chunk].state == State::kOwned) return 2;
    return chunks_[chunk].has_memory ? 0 : 1;
  };
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.state == State::kClaimed || chunk.sessions > 0 || !allocator_.IsEmpty(i)) continue;
    if (chunk.state == State::kOwned && chunk.tenant == tenant) continue;
    if (!best || order(i) < order(*best)) best = i;
  }
  if (!best) return std::nullopt;
  const bool used = chunks_[*best].state == State::kOwned;
  if (used) TakeFrom(*best);
  chunks_[*best].state = State::kClaimed;
  return Claimed{*best, used};
}

void ChunkPool::TakeFrom(uint32_t index) {
  Chunk& chunk = chunks_[index];
  allocator_.SetPool(index, closed_pool_);
  const auto it = tenants_.find(chunk.tenant);
  if (--it->second.chunks == 0) {
    free_pools_.push_back(it->second.pool);
    tenants_.erase(it);
  }
  chunk.tenant.clear();
}

void ChunkPool::Assign(uint32_t index, std::string_view name) {
  auto it = tenants_.find(name);
  if (it == tenants_.end()) {
    uint32_t pool;
    if (free_pools_.empty()) {
      pool = allocator_.AddPool();
    } else {
      pool = free_pools_.back();
      free_pools_.pop_back();
    }
    it = tenants_.emplace(std::string(name), Tenant{pool, 0}).first;
  }
  ++it->second.chunks;
  Chunk& chunk = chunks_[index];
  chunk.state = State::kOwned;
  chunk.has_memory = true;
  chunk.tenant = it->first;
  allocator_.SetPool(index, it->second.pool);
}

void ChunkPool::Unclaim(uint32_t index, bool has_memory) {
  chunks_[index].state = State::kFree;
  chunks_[index].has_memory = has_memory;
}

uint32_t ChunkPool::chunks_of(std::string_view tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? 0 : it->second.chunks;
}

bool ChunkPool::HasLessThanItsShare(std::string_view tenant) const {
  const uint32_t own = chunks_of(tenant);
  const size_t others = tenants_.size() - (own > 0 ? 1 : 0);
  if (others == 0 || (own + 1) * (others + 1) > chunks_.size()) return own == 0 && others > 0;
  return std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& entry) {
    return entry.first != tenant && entry.second.chunks > own + 1;
  });
}

std::optional<uint32_t> ChunkPool::ChunkToEmpty(std::string_view for_tenant) const {
  uint32_t most = chunks_of(for_tenant);
  for (const auto& [name, tenant] : tenants_) {
    if (name != for_tenant) most = std::max(most, tenant.chunks);
  }
  std::optional<uint32_t> best;
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.state != State::kOwned || chunk.tenant == for_tenant || chunk.sessions > 0) continue;
    if (chunks_of(chunk.tenant) != most) continue;
    if (!best || allocator_.used_pages_in(i) < allocator_.used_pages_in(*best)) best = i;
  }
  return best;
}

uint32_t ChunkPool::shared_chunks() const {
  return static_cast<uint32_t>(
      std::count_if(chunks_.begin(), chunks_.end(), [](const Chunk& c) { return c.sessions > 0; }));
}

}  // namespace cairn::cache
