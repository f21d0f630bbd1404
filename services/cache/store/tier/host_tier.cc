#include "services/cache/store/tier/host_tier.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "common/log/log.h"
#include "common/memory/bulk_copy.h"
#include "common/memory/machine_memory.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr uint64_t kDefaultSegment = 64 << 20;
constexpr uint64_t kMaxSegment = uint64_t{2} << 30;
constexpr uint64_t kMaxSegments = 512;
constexpr uint64_t kPrefaultChunk = 4 << 20;
constexpr size_t kMaxPrefaultsWaiting = 8;  // Segments with new memory.

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

uint32_t PagesOf(uint32_t length) {
  return static_cast<uint32_t>(RoundUp(length, kHostPageBytes) / kHostPageBytes);
}

std::string Errno(int error) { return std::strerror(error); }

// Makes fresh pages of [address, address + bytes) present. Also through the descriptor, if there is
// one, for kernels before 5.14.
int Populate(std::byte* address, uint64_t bytes, int fd, uint64_t offset) {
#ifdef MADV_POPULATE_WRITE
  constexpr int kAdvice = MADV_POPULATE_WRITE;
#else
  constexpr int kAdvice = 23;
#endif
  int error = 0;
  do {
    error = madvise(address, bytes, kAdvice) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error != EINVAL || fd < 0) return error;
  do {
    error =
        fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error;
}

}  // namespace

uint64_t HostSegmentBytes(uint64_t wanted, uint64_t capacity) {
  uint64_t segment = wanted;
  if (segment == 0) {
    segment = kDefaultSegment;
    // A descriptor a segment: stay well below the usual limit of 1024.
    while (capacity / segment > kMaxSegments && segment < kMaxSegment) segment *= 2;
  }
  return std::min(segment, capacity);
}

Result<std::unique_ptr<HostTier>> HostTier::Create(const HostTierOptions& options) {
  if (options.capacity_bytes < kHostPageBytes) {
    return InvalidArgument("option 'capacity_bytes': got {}, expected at least {}",
                           options.capacity_bytes, kHostPageBytes);
  }
  if (options.capacity_bytes / kHostPageBytes > (uint64_t{1} << 30) - 1) {
    return InvalidArgument("option 'capacity_bytes': got {}, expected at most 4 TiB",
                           options.capacity_bytes);
  }
  if (options.segment_bytes % kHugePage != 0 || options.segment_bytes > kMaxSegment) {
    return InvalidArgument("option 'segment_bytes': got {}, expected a multiple of {} up to {}",
                           options.segment_bytes, kHugePage, kMaxSegment);
  }
  if (options.check_memory) {
    CAIRN_RETURN_IF_ERROR(CheckFits(
        ReadMachineMemory(), options.capacity_bytes,
        fmt::format("host arena: option 'capacity_bytes': got {}", options.capacity_bytes),
        "lower it"));
  }

  std::unique_ptr<HostTier> tier(new HostTier);
  tier->name_ = options.name;
  tier->prefault_ = options.prefault;
  tier->max_owners_ = options.max_owners;
  Status mapped = OkStatus();
  if (options.huge_pages != HostTierOptions::HugePages::kOff) {
    mapped = tier->MapArena(options, /*huge=*/true);
    if (!mapped.ok()) {
      tier->UnmapArena();
      if (options.huge_pages == HostTierOptions::HugePages::kRequire) {
        return Errorf(
            StatusCode::kFailedPrecondition,
            "host arena: option 'huge_pages' requires {} pages of 2 MiB (vm.nr_hugepages): {}",
            (options.capacity_bytes + kHugePage - 1) / kHugePage, Message(mapped));
      }
      log::Info("host_arena_without_huge_pages", {{"reason", Message(mapped)}});
    }
  }
  if (!tier->huge_pages_) {
    mapped = tier->MapArena(options, /*huge=*/false);
    if (!mapped.ok()) return mapped;
  }

  std::vector<uint32_t> pages;
  for (const ArenaSegment& segment : tier->segments_) {
    pages.push_back(static_cast<uint32_t>(segment.bytes / kHostPageBytes));
  }
  {
    MutexLock lock(tier->mu_);
    tier->allocator_ = std::make_unique<ExtentAllocator>(pages);
    tier->draining_pool_ = tier->allocator_->AddPool();
    tier->changing_pool_ = tier->allocator_->AddPool();
    tier->orphan_pool_ = tier->allocator_->AddPool();
    tier->retired_.set_limit(RetiredLimit(tier->capacity_bytes_, tier->segment_bytes_));
    tier->states_ = std::make_unique<SegmentState[]>(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) tier->states_[i].id = tier->next_segment_id_++;
  }
  if (options.prefault) {
    {
      MutexLock lock(tier->prefault_mu_);
      tier->prefault_done_ = false;
      tier->prefault_over_ = false;
    }
    tier->prefault_thread_ = std::thread([raw = tier.get()] { raw->Prefault(); });
  }
  return tier;
}

uint64_t HostTier::RetiredLimit(uint64_t capacity_bytes, uint64_t segment_bytes) {
  const uint64_t segment =
      std::max(kHostPageBytes, HostSegmentBytes(segment_bytes, capacity_bytes));
  return std::max(segment, capacity_bytes / 16 / segment * segment);
}

Status HostTier::MapArena(const HostTierOptions& options, bool huge) {
  capacity_bytes_ = options.capacity_bytes / kHostPageBytes * kHostPageBytes;
  if (huge) capacity_bytes_ = RoundUp(capacity_bytes_, kHugePage);
  segment_bytes_ = HostSegmentBytes(options.segment_bytes, capacity_bytes_);
  segment_shift_.reset();  // The shift is of a try with huge pages.
  if (std::has_single_bit(segment_bytes_)) segment_shift_ = std::countr_zero(segment_bytes_);

  // One range of addresses for all segments, so that an id becomes an address by one addition.
  reserved_address_bytes_ = capacity_bytes_ + kHugePage;
  void* reserved = mmap(nullptr, reserved_address_bytes_, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return Errorf(StatusCode::kResourceExhausted, "host arena: {} bytes of addresses: {}",
                  reserved_address_bytes_, Errno(errno));
  }
  reserved_address_ = reserved;
  base_ = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(reserved), kHugePage));

  for (uint64_t offset = 0; offset < capacity_bytes_; offset += segment_bytes_) {
    segments_.push_back({-1, offset, std::min(segment_bytes_, capacity_bytes_ - offset)});
    CAIRN_RETURN_IF_ERROR(MapSegment(&segments_.back(), huge));
  }
  huge_pages_ = huge;
  return OkStatus();
}

// Fresh memory for the segment, in place of what is mapped there now. The descriptor of the old
// memory is overwritten, but stays open.
Status HostTier::MapSegment(ArenaSegment* segment, bool huge) {
  const auto index = static_cast<size_t>(segment - segments_.data());
  const std::string name = fmt::format("{}-{}", name_, index);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u);
  const int fd = memfd_create(name.c_str(), flags);
  if (fd < 0) {
    return Errorf(StatusCode::kResourceExhausted,
                  "host arena: memfd {} of {} bytes, {} bytes in all: {}", index, segment->bytes,
                  capacity_bytes_, Errno(errno));
  }
  if (ftruncate(fd, static_cast<off_t>(segment->bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
      mmap(base_ + segment->offset, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           fd, 0) == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return Errorf(StatusCode::kResourceExhausted,
                  "host arena: segment {} of {} bytes, {} bytes in all: {}", index, segment->bytes,
                  capacity_bytes_, Errno(error));
  }
  segment->fd = fd;
  return OkStatus();
}

void HostTier::UnmapArena() {
  if (reserved_address_ != nullptr) munmap(reserved_address_, reserved_address_bytes_);
  for (const ArenaSegment& segment : segments_) {
    if (segment.fd >= 0) close(segment.fd);
  }
  reserved_address_ = nullptr;
  segments_.clear();
}

HostTier::~HostTier() {
  {
    MutexLock lock(prefault_mu_);
    stop_prefault_.store(true, std::memory_order_relaxed);
  }
  prefault_wanted_cv_.NotifyAll();
  if (prefault_thread_.joinable()) prefault_thread_.join();
  UnmapArena();
}

void HostTier::Prefault() {
  pthread_setname_np(pthread_self(), "cairn-prefault");
  // Requests go first. Only a hint, so a refusal does not matter.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  for (const ArenaSegment& segment : segments_) {
    for (uint64_t at = 0; at < segment.bytes; at += kPrefaultChunk) {
      if (stop_prefault_.load(std::memory_order_relaxed)) break;
      const uint64_t bytes = std::min(kPrefaultChunk, segment.bytes - at);
      const int error = Populate(base_ + segment.offset + at, bytes, segment.fd, at);
      if (error != 0) {
        log::Warn("host_arena_prefault_stopped",
                  {{"at", log::Num(segment.offset + at)}, {"reason", Errno(error)}});
        stop_prefault_.store(true, std::memory_order_relaxed);
        break;
      }
      prefaulted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
  }
  {
    MutexLock lock(prefault_mu_);
    prefault_done_ = true;
    prefault_over_ = true;
  }
  prefault_done_cv_.NotifyAll();
  for (;;) {
    uint32_t index;
    {
      MutexLock lock(prefault_mu_);
      prefault_wanted_cv_.Wait(prefault_mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(prefault_mu_) {
        return !prefault_wanted_.empty() || stop_prefault_.load(std::memory_order_relaxed);
      });
      if (stop_prefault_.load(std::memory_order_relaxed)) return;
      index = prefault_wanted_.front();
      prefault_wanted_.pop_front();
    }
    // The memory may be replaced once more meanwhile: only the addresses are used, and to touch
    // them is right whatever lies there.
    const uint64_t bytes = segments_[index].bytes;
    for (uint64_t at = 0; at < bytes; at += kPrefaultChunk) {
      if (stop_prefault_.load(std::memory_order_relaxed)) return;
      std::byte* const address = base_ + segments_[index].offset + at;
      if (Populate(address, std::min(kPrefaultChunk, bytes - at), -1, 0) != 0) break;
    }
  }
}

void HostTier::PrefaultAgain(uint32_t index) {
  if (!prefault_) return;
  {
    MutexLock lock(prefault_mu_);
    // An owner that gives segments away faster than this can touch them gains nothing by a queue.
    if (prefault_wanted_.size() >= kMaxPrefaultsWaiting) return;
    prefault_wanted_.push_back(index);
  }
  prefault_wanted_cv_.NotifyOne();
}

void HostTier::WaitForPrefault() {
  MutexLock lock(prefault_mu_);
  prefault_done_cv_.Wait(prefault_mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(prefault_mu_) {
    return prefault_done_;
  });
}

Result<Extent> HostTier::Reserve(uint32_t length) { return ReserveFor({}, length); }

void HostTier::Release(const Extent& extent) {
  CAIRN_CHECK(extent.length > 0 && extent.id % kHostPageBytes == 0 && extent.id < capacity_bytes_);
  const auto page = static_cast<uint32_t>(extent.id / kHostPageBytes);
  MutexLock lock(mu_);
  CAIRN_CHECK(allocator_->IsReserved(page, PagesOf(extent.length)));
  allocator_->Release(page, PagesOf(extent.length));
  asked_bytes_ -= extent.length;
  --extents_;
}

void HostTier::Write(const Extent& extent, std::string_view, std::span<const std::byte> source,
                     IoCallback done) {
  if (source.size() != extent.length) {
    return done(
        InvalidArgument("field 'source': got {} bytes, expected {}", source.size(), extent.length));
  }
  BulkCopy(Map(extent).data(), source.data(), source.size());
  written_bytes_.fetch_add(source.size(), std::memory_order_relaxed);
  done(OkStatus());
}

void HostTier::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  if (destination.size() != extent.length) {
    return done(InvalidArgument("field 'destination': got {} bytes, expected {}",
                                destination.size(), extent.length));
  }
  // The reader verifies what it got, so it is better off in the caches: no streaming stores.
  std::memcpy(destination.data(), Map(extent).data(), destination.size());
  read_bytes_.fetch_add(destination.size(), std::memory_order_relaxed);
  done(OkStatus());
}

std::span<std::byte> HostTier::Map(const Extent& extent) {
  CAIRN_CHECK(extent.id < capacity_bytes_ && extent.length <= capacity_bytes_ - extent.id);
  return {base_ + extent.id, extent.length};
}

std::optional<uint32_t> HostTier::SegmentAt(std::span<const std::byte> bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(bytes.data());
  const auto base = reinterpret_cast<uintptr_t>(base_);
  if (at < base || bytes.size() > capacity_bytes_ || at - base > capacity_bytes_ - bytes.size()) {
    return std::nullopt;
  }
  const uint32_t index = SegmentOf(at - base);
  const ArenaSegment& segment = segments_[index];
  if (at - base + bytes.size() > segment.offset + segment.bytes) return std::nullopt;
  return index;
}

uint32_t HostTier::max_extent_bytes() const { return static_cast<uint32_t>(segment_bytes_); }

TierStats HostTier::GetStats() const {
  TierStats stats;
  stats.capacity_bytes = capacity_bytes_;
  stats.read_bytes = read_bytes_.load(std::memory_order_relaxed);
  stats.written_bytes = written_bytes_.load(std::memory_order_relaxed);
  MutexLock lock(mu_);
  stats.used_bytes = allocator_->used_pages() * kHostPageBytes;
  stats.extents = extents_;
  return stats;
}

HostTierStats HostTier::GetHostStats() const {
  HostTierStats stats;
  stats.segments = segments_.size();
  stats.prefaulted_bytes = prefaulted_bytes_.load(std::memory_order_relaxed);
  stats.huge_pages = huge_pages_;
  MutexLock lock(mu_);
  stats.asked_bytes = asked_bytes_;
  stats.largest_free_bytes = allocator_->largest_free_pages() * kHostPageBytes;
  stats.empty_segments = allocator_->empty_segments();
  stats.retired_bytes = retired_.bytes();
  stats.owners = owners_.size();
  return stats;
}

}  // namespace cairn::cache
