#include "services/cache/store/tier/device/device_tier.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

Status CheckOptions(const DevicePoolOptions& options) {
  constexpr uint64_t kPage = ChunkPool::kPageBytes;
  if (options.chunk_bytes < kPage || options.chunk_bytes % kPage != 0 ||
      options.chunk_bytes > (uint64_t{2} << 30)) {
    return InvalidArgument("device.chunk: got {} bytes, expected a multiple of {} up to 2 GiB",
                           options.chunk_bytes, kPage);
  }
  if (options.capacity_bytes < options.chunk_bytes) {
    return InvalidArgument("device.capacity: got {} bytes, expected at least one chunk of {}",
                           options.capacity_bytes, options.chunk_bytes);
  }
  return OkStatus();
}

Result<std::vector<uint32_t>> ChooseDevices(const std::vector<std::string>& names,
                                            const device::Driver& driver) {
  std::vector<uint32_t> ordinals;
  if (driver.devices().empty()) {
    return Errorf(StatusCode::kFailedPrecondition, "device.ids: the {} driver shows no device",
                  driver.name());
  }
  if (names.empty()) {
    ordinals.resize(driver.devices().size());
    std::iota(ordinals.begin(), ordinals.end(), 0u);
    return ordinals;
  }
  std::set<uint32_t> seen;
  for (const std::string& name : names) {
    const auto info = driver.Find(name);
    if (!info.ok()) return Annotate(info.status(), "device.ids");
    if (!seen.insert(info->ordinal).second) {
      return InvalidArgument("device.ids: got device {} twice, expected each once", info->ordinal);
    }
    ordinals.push_back(info->ordinal);
  }
  return ordinals;
}

}  // namespace

Result<std::unique_ptr<DeviceTier>> DeviceTier::Create(const DeviceTierOptions& options,
                                                       const Dependencies& dependencies) {
  CAIRN_CHECK(dependencies.driver != nullptr && dependencies.clock != nullptr);
  CAIRN_RETURN_IF_ERROR(CheckOptions(options.pool));
  std::unique_ptr<DeviceTier> tier(new DeviceTier);
  CAIRN_RETURN_IF_ERROR(tier->Open(options, dependencies));
  return tier;
}

Status DeviceTier::Open(const DeviceTierOptions& options, const Dependencies& dependencies) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> ordinals,
                         ChooseDevices(options.devices, *dependencies.driver));
  for (const uint32_t ordinal : ordinals) {
    CAIRN_ASSIGN_OR_RETURN(auto device, dependencies.driver->Open(ordinal));
    if (pins_ == nullptr && dependencies.host != nullptr) {
      pins_ = std::make_unique<HostPins>(dependencies.host, device, dependencies.clock,
                                         options.pin_host && device->info().registers);
    }
    CAIRN_ASSIGN_OR_RETURN(auto pool,
                           DevicePool::Create(options.pool, {.device = std::move(device),
                                                             .poller = &poller_,
                                                             .pins = pins_.get(),
                                                             .clock = dependencies.clock,
                                                             .next_memory = &next_memory_}));
    const device::DeviceInfo& info = pool->info();
    log::Info("device_tier", {{"device", log::Num(info.ordinal)},
                              {"name", info.name},
                              {"uuid", info.uuid},
                              {"capacity_bytes", log::Num(pool->pool_bytes())},
                              {"exports", info.exports ? "yes" : "no"}});
    pools_.push_back(std::move(pool));
  }
  clock_ = dependencies.clock;
  if (options.poll_interval.count() > 0) {
    thread_ = std::make_unique<device::PollingThread>(&poller_, options.poll_interval);
  }
  return OkStatus();
}

void DeviceTier::Tick() {
  const TimePoint now = clock_->Now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  for (const auto& pool : pools_) pool->Look();
}

DeviceTier::~DeviceTier() {
  thread_.reset();
  pools_.clear();
}

Result<Extent> DeviceTier::ReserveOf(std::string_view tenant, uint32_t length) {
  if (length == 0 || length > max_extent_bytes()) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length, max_extent_bytes());
  }
  // The emptiest first, so that all devices fill.
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_.size() > 1) {
      order.emplace_back(pools_[i]->GetStats().used_bytes, i);
    } else {
      order.emplace_back(0, i);
    }
  }
  std::sort(order.begin(), order.end());
  Status status;
  for (const auto& [used, i] : order) {
    const auto offset = pools_[i]->Reserve(tenant, length);
    if (offset.ok()) return Extent{uint64_t{i} << kPoolShift | *offset, length};
    // A full device counts more than a lost one: there is something to evict.
    if (status.ok() || offset.status().code() == StatusCode::kResourceExhausted) {
      status = offset.status();
    }
  }
  if (status.code() != StatusCode::kResourceExhausted) return status;
  const TierStats stats = GetStats();
  return Errorf(StatusCode::kResourceExhausted,
                "device tier: no free run of {} bytes ({} of {} bytes used)", length,
                stats.used_bytes, stats.capacity_bytes);
}

std::optional<TenantGroup> DeviceTier::GroupToEmpty(std::string_view tenant) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i]->lost() || !pools_[i]->HasLessThanItsShare(tenant)) continue;
    const auto chunk = pools_[i]->ChunkToEmpty(tenant);
    if (!chunk) continue;
    const uint64_t begin = uint64_t{i} << kPoolShift | chunk->chunk * pools_[i]->chunk_bytes();
    return TenantGroup{chunk->tenant, begin, begin + pools_[i]->chunk_bytes()};
  }
  return std::nullopt;
}

void DeviceTier::Release(const Extent& extent) {
  PoolOf(extent.id).Release(OffsetOf(extent.id), extent.length);
}

void DeviceTier::Count(std::atomic<uint64_t>* bytes, uint64_t length, const Status& status) {
  if (status.ok()) {
    bytes->fetch_add(length, std::memory_order_relaxed);
  } else {
    io_errors_.fetch_add(1, std::memory_order_relaxed);
  }
}

void DeviceTier::Write(const Extent& extent, std::string_view, std::span<const std::byte> source,
                       IoCallback done) {
  if (source.size() != extent.length) {
    return done(
        InvalidArgument("field 'source': got {} bytes, expected {}", source.size(), extent.length));
  }
  PoolOf(extent.id).Write(OffsetOf(extent.id), source,
                          [this, length = extent.length, done = std::move(done)](Status status) {
                            Count(&written_bytes_, length, status);
                            done(std::move(status));
                          });
}

void DeviceTier::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  if (destination.size() != extent.length) {
    return done(InvalidArgument("field 'destination': got {} bytes, expected {}",
                                destination.size(), extent.length));
  }
  PoolOf(extent.id).Read(OffsetOf(extent.id), destination,
                         [this, length = extent.length, done = std::move(done)](Status status) {
                           Count(&read_bytes_, length, status);
                           done(std::move(status));
                         });
}

void DeviceTier::CopyOut(uint32_t pool, std::span<const Extent> extents,
                         std::span<const uint64_t> addresses, IoCallback done) {
  std::vector<DevicePool::Inner> copies;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].id >> kPoolShift != pool) {
      return done(Errorf(StatusCode::kUnimplemented,
                         "device tier: got an extent on device {}, expected one on {}",
                         extents[i].id >> kPoolShift, pool));
    }
    copies.push_back({OffsetOf(extents[i].id), extents[i].length, addresses[i]});
  }
  pools_[pool]->CopyOut(copies, std::move(done));
}

uint32_t DeviceTier::max_extent_bytes() const {
  return static_cast<uint32_t>(pools_[0]->chunk_bytes());
}

TierStats DeviceTier::GetStats() const {
  TierStats stats;
  for (const auto& pool : pools_) {
    const DevicePoolStats of_pool = pool->GetStats();
    stats.capacity_bytes += of_pool.capacity_bytes;
    stats.used_bytes += of_pool.used_bytes;
    stats.extents += of_pool.extents;
  }
  stats.read_bytes = read_bytes_.load(std::memory_order_relaxed);
  stats.written_bytes = written_bytes_.load(std::memory_order_relaxed);
  stats.io_errors = io_errors_.load(std::memory_order_relaxed);
  return stats;
}

uint64_t DeviceTier::losses() const {
  return static_cast<uint64_t>(
      std::count_if(pools_.begin(), pools_.end(), [](const auto& pool) { return pool->lost(); }));
}

DeviceTier::Place DeviceTier::PlaceOf(uint64_t id) const {
  const auto place = PoolOf(id).PlaceOf(OffsetOf(id));
  return {static_cast<uint32_t>(id >> kPoolShift), place.chunk, place.memory, place.offset};
}

std::vector<DeviceTierStats> DeviceTier::GetDeviceStats() const {
  std::vector<DeviceTierStats> all;
  for (const auto& pool : pools_) {
    DeviceTierStats& stats = all.emplace_back();
    static_cast<DevicePoolStats&>(stats) = pool->GetStats();
    stats.uuid = pool->info().uuid;
    stats.name = pool->info().name;
    stats.lost = pool->lost();
  }
  return all;
}

}  // namespace cairn::cache
