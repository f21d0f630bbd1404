#include "services/cache/store/tier/device/device_pool.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

// Chunks that a Reserve tries to get: another thread may be faster each time.
constexpr int kMaxClaims = 4;

uint32_t ChunksIn(const DevicePoolOptions& options) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, options.capacity_bytes / options.chunk_bytes));
}

}  // namespace

DevicePool::DevicePool(const DevicePoolOptions& options, const Dependencies& dependencies)
    : options_(options),
      chunk_count_(ChunksIn(options)),
      device_(dependencies.device),
      poller_(*dependencies.poller),
      pins_(dependencies.pins),
      clock_(*dependencies.clock),
      next_memory_(*dependencies.next_memory),
      pool_(chunk_count_, options.chunk_bytes),
      chunks_(chunk_count_) {}

Result<std::unique_ptr<DevicePool>> DevicePool::Create(const DevicePoolOptions& options,
                                                       const Dependencies& dependencies) {
  if (options.chunk_bytes % dependencies.device->info().granularity != 0) {
    return InvalidArgument(
        "device.chunk: got {} bytes, expected a multiple of {}, which device {} "
        "allocates",
        options.chunk_bytes, dependencies.device->info().granularity,
        dependencies.device->info().ordinal);
  }
  std::unique_ptr<DevicePool> pool(new DevicePool(options, dependencies));
  CAIRN_RETURN_IF_ERROR(pool->Open());
  return pool;
}

Status DevicePool::Open() {
  const auto make = [this](CopyLane::Direction direction) {
    return CopyLane::Create(
        {.direction = direction, .slot_bytes = options_.slot_bytes, .slots = options_.slots},
        device_, &poller_, pins_);
  };
  CAIRN_ASSIGN_OR_RETURN(to_device_, make(CopyLane::Direction::kToDevice));
  CAIRN_ASSIGN_OR_RETURN(from_device_, make(CopyLane::Direction::kFromDevice));
  CAIRN_ASSIGN_OR_RETURN(inner_, InnerCopies::Create(device_, &poller_));
  const auto state = device_->GetMemoryState();
  if (!state.ok()) return state.status();
  if (state->free_bytes < pool_bytes()) {
    log::Warn("device_short_of_memory", {{"device", log::Num(info().ordinal)},
                                         {"free_bytes", log::Num(state->free_bytes)},
                                         {"capacity_bytes", log::Num(pool_bytes())}});
  }
  return OkStatus();
}

DevicePool::~DevicePool() {
  // Their streams end before the memory that they write.
  to_device_.reset();
  from_device_.reset();
  inner_.reset();
}

Result<uint64_t> DevicePool::Reserve(std::string_view tenant, uint32_t length) {
  for (int claims = 0;; ++claims) {
    if (device_->lost()) return device_->LossStatus();
    {
      MutexLock lock(mu_);
      if (const auto range = pool_.Reserve(tenant, length)) {
        return range->chunk * options_.chunk_bytes + range->offset;
      }
    }
    if (claims == kMaxClaims) {
      return Errorf(StatusCode::kResourceExhausted, "device tier: others take every chunk");
    }
    CAIRN_RETURN_IF_ERROR(Grow(tenant));
  }
}

Status DevicePool::Grow(std::string_view tenant) {
  std::optional<ChunkPool::Claimed> claimed;
  {
    MutexLock lock(mu_);
    claimed = pool_.Claim(tenant);
    if (!claimed) return Errorf(StatusCode::kResourceExhausted, "device tier: no free chunk");
    if (!chunks_[claimed->chunk].memory && clock_.Now() < short_until_) {
      pool_.Unclaim(claimed->chunk, /*has_memory=*/false);
      return Errorf(StatusCode::kResourceExhausted, "device tier: the device has no memory left");
    }
  }
  const Status prepared = Prepare(claimed->chunk);
  MutexLock lock(mu_);
  if (prepared.ok()) {
    pool_.Assign(claimed->chunk, tenant);
    return prepared;
  }
  // Its contents are unknown: it gets other memory next time.
  pool_.Unclaim(claimed->chunk, /*has_memory=*/false);
  if (prepared.code() == StatusCode::kResourceExhausted) {
    short_until_ = clock_.Now() + kRetryAfter;
    if (shortages_++ == 0) {
      log::Warn("device_short_of_memory", {{"device", log::Num(info().ordinal)},
                                           {"chunk_bytes", log::Num(options_.chunk_bytes)},
                                           {"reason", Message(prepared)}});
    }
  }
  return prepared;
}

Status DevicePool::Prepare(uint32_t index) {
  device::DeviceMemory memory;
  bool exported;
  {
    MutexLock lock(mu_);
    exported = std::exchange(chunks_[index].exported, false);
    memory = std::move(chunks_[index].memory);
  }
  // First the old memory goes: there may be no room for both.
  if (exported) memory.Release();
  if (!memory) {
    CAIRN_ASSIGN_OR_RETURN(memory, device_->Allocate(options_.chunk_bytes, info().exports));
  }
  CAIRN_RETURN_IF_ERROR(to_device_->Fill(memory.address(), 0, options_.chunk_bytes));
  MutexLock lock(mu_);
  Chunk& chunk = chunks_[index];
  chunk.memory = std::move(memory);
  chunk.id = next_memory_.fetch_add(1, std::memory_order_relaxed);
  return OkStatus();
}

void DevicePool::Release(uint64_t offset, uint32_t length) {
  MutexLock lock(mu_);
  pool_.Release(
      {static_cast<uint32_t>(offset / options_.chunk_bytes), offset % options_.chunk_bytes},
      length);
}

uint64_t DevicePool::AddressOf(uint64_t offset) const {
  MutexLock lock(mu_);
  return chunks_[offset / options_.chunk_bytes].memory.address() + offset % options_.chunk_bytes;
}

void DevicePool::Write(uint64_t offset, std::span<const std::byte> host, IoCallback done) {
  // The lane only reads where it copies to the device.
  to_device_->Submit(AddressOf(offset), {const_cast<std::byte*>(host.data()), host.size()},
                     std::move(done));
}

void DevicePool::Read(uint64_t offset, std::span<std::byte> host, IoCallback done) {
  from_device_->Submit(AddressOf(offset), host, std::move(done));
}

void DevicePool::CopyOut(std::span<const Inner> copies, IoCallback done) {
  if (device_->lost()) return done(device_->LossStatus());
  std::vector<device::CopyTask> tasks;
  for (const Inner& copy : copies) tasks.push_back({copy.to, AddressOf(copy.offset), copy.bytes});
  inner_->Submit(tasks, std::move(done));
}

DevicePool::ChunkPlace DevicePool::PlaceOf(uint64_t offset) const {
  const auto chunk = static_cast<uint32_t>(offset / options_.chunk_bytes);
  MutexLock lock(mu_);
  return {chunk, chunks_[chunk].id, offset % options_.chunk_bytes};
}

Result<DevicePool::Shared> DevicePool::Share(uint32_t index, uint32_t memory,
                                             std::string_view tenant) {
  if (device_->lost()) return device_->LossStatus();
  MutexLock lock(mu_);
  if (index >= chunk_count_ || !pool_.is_owned(index) || chunks_[index].id != memory ||
      pool_.tenant_of(index) != tenant) {
    return Errorf(StatusCode::kNotFound, "device tier: chunk {} is no longer this tenant's",
                  memory);
  }
  Chunk& chunk = chunks_[index];
  CAIRN_ASSIGN_OR_RETURN(const int descriptor, chunk.memory.Export());
  chunk.exported = true;
  pool_.AddSession(index);
  return Shared{descriptor, options_.chunk_bytes};
}

void DevicePool::Unshare(uint32_t index, uint32_t memory) {
  MutexLock lock(mu_);
  CAIRN_CHECK(index < chunk_count_ && chunks_[index].id == memory && pool_.sessions_of(index) > 0);
  pool_.RemoveSession(index);
}

bool DevicePool::HasLessThanItsShare(std::string_view tenant) const {
  MutexLock lock(mu_);
  return pool_.HasLessThanItsShare(tenant);
}

std::optional<DevicePool::ToEmpty> DevicePool::ChunkToEmpty(std::string_view for_tenant) const {
  MutexLock lock(mu_);
  const auto chunk = pool_.ChunkToEmpty(for_tenant);
  if (!chunk) return std::nullopt;
  return ToEmpty{*chunk, pool_.tenant_of(*chunk)};
}

DevicePoolStats DevicePool::GetStats() const {
  DevicePoolStats stats;
  stats.detour_bytes = to_device_->detour_bytes() + from_device_->detour_bytes();
  MutexLock lock(mu_);
  stats.capacity_bytes = device_->lost() ? 0 : pool_bytes();
  stats.used_bytes = pool_.used_bytes();
  for (const Chunk& chunk : chunks_) {
    if (!chunk.memory) continue;
    ++stats.chunks;
    stats.memory_bytes += chunk.memory.bytes();
  }
  stats.shared_chunks = pool_.shared_chunks();
  stats.extents = pool_.extents();
  stats.shortages = shortages_;
  return stats;
}

}  // namespace cairn::cache
