#include "services/cache/store/tier/arena_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log/log.h"
#include "common/memory/machine_memory.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cairn::cache {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr uint64_t kDefaultSegment = 64 << 20;
constexpr uint64_t kMaxSegment = uint64_t{2} << 30;
constexpr uint64_t kMaxSegments = 512;

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

Status CheckOptions(const ArenaOptions& options) {
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
  if (!options.check_memory) return OkStatus();
  return CheckFits(
      ReadMachineMemory(), options.capacity_bytes,
      fmt::format("host arena: option 'capacity_bytes': got {}", options.capacity_bytes),
      "lower it");
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

Result<std::unique_ptr<ArenaMemory>> ArenaMemory::Create(const ArenaOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<ArenaMemory> memory(new ArenaMemory(options.name));
  Status mapped = OkStatus();
  if (options.huge_pages != ArenaOptions::HugePages::kOff) {
    mapped = memory->MapArena(options, /*huge=*/true);
    if (!mapped.ok()) {
      memory->UnmapArena();
      if (options.huge_pages == ArenaOptions::HugePages::kRequire) {
        return Errorf(
            StatusCode::kFailedPrecondition,
            "host arena: option 'huge_pages' requires {} pages of 2 MiB (vm.nr_hugepages): {}",
            (options.capacity_bytes + kHugePage - 1) / kHugePage, Message(mapped));
      }
      log::Info("host_arena_without_huge_pages", {{"reason", Message(mapped)}});
    }
  }
  if (!memory->huge_pages_) CAIRN_RETURN_IF_ERROR(memory->MapArena(options, /*huge=*/false));
  {
    MutexLock lock(memory->mu_);
    memory->retired_.set_limit(
        RetiredLimit(memory->grid_.capacity(), memory->grid_.segment_bytes()));
  }
  if (options.prefault) {
    std::vector<Prefault::Segment> segments;
    for (uint32_t i = 0; i < memory->grid_.count(); ++i) {
      segments.push_back({memory->Segment(i), memory->fds_[i]});
    }
    memory->prefault_.Start(std::move(segments));
  }
  return memory;
}

uint64_t ArenaMemory::RetiredLimit(uint64_t capacity_bytes, uint64_t segment_bytes) {
  const uint64_t segment =
      std::max(kHostPageBytes, HostSegmentBytes(segment_bytes, capacity_bytes));
  return std::max(segment, capacity_bytes / 16 / segment * segment);
}

Status ArenaMemory::MapArena(const ArenaOptions& options, bool huge) {
  uint64_t capacity = options.capacity_bytes / kHostPageBytes * kHostPageBytes;
  if (huge) capacity = RoundUp(capacity, kHugePage);
  grid_ = SegmentGrid(capacity, HostSegmentBytes(options.segment_bytes, capacity));

  // One range of addresses for all segments, so that an id becomes an address by one addition.
  reserved_address_bytes_ = capacity + kHugePage;
  void* reserved = mmap(nullptr, reserved_address_bytes_, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return Errorf(StatusCode::kResourceExhausted, "host arena: {} bytes of addresses: {}",
                  reserved_address_bytes_, std::strerror(errno));
  }
  reserved_address_ = reserved;
  base_ = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(reserved), kHugePage));

  for (uint32_t i = 0; i < grid_.count(); ++i) {
    fds_.push_back(-1);
    CAIRN_RETURN_IF_ERROR(MapSegment(i, huge));
  }
  huge_pages_ = huge;
  return OkStatus();
}

Status ArenaMemory::MapSegment(uint32_t index, bool huge) {
  const uint64_t bytes = grid_.BytesOf(index);
  const std::string name = fmt::format("{}-{}", name_, index);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u);
  const int fd = memfd_create(name.c_str(), flags);
  if (fd < 0) {
    return Errorf(StatusCode::kResourceExhausted,
                  "host arena: memfd {} of {} bytes, {} bytes in all: {}", index, bytes,
                  grid_.capacity(), std::strerror(errno));
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
      mmap(Segment(index).data(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
          MAP_FAILED) {
    const int error = errno;
    close(fd);
    return Errorf(StatusCode::kResourceExhausted,
                  "host arena: segment {} of {} bytes, {} bytes in all: {}", index, bytes,
                  grid_.capacity(), std::strerror(error));
  }
  fds_[index] = fd;
  return OkStatus();
}

void ArenaMemory::UnmapArena() {
  if (reserved_address_ != nullptr) munmap(reserved_address_, reserved_address_bytes_);
  for (const int fd : fds_) {
    if (fd >= 0) close(fd);
  }
  reserved_address_ = nullptr;
  fds_.clear();
}

ArenaMemory::~ArenaMemory() {
  prefault_.Stop();
  UnmapArena();
}

std::optional<uint32_t> ArenaMemory::SegmentAt(std::span<const std::byte> bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(bytes.data());
  const auto base = reinterpret_cast<uintptr_t>(base_);
  const uint64_t capacity = grid_.capacity();
  if (at < base || bytes.size() > capacity || at - base > capacity - bytes.size()) {
    return std::nullopt;
  }
  const uint32_t index = grid_.SegmentOf(at - base);
  if (at - base + bytes.size() > grid_.OffsetOf(index) + grid_.BytesOf(index)) return std::nullopt;
  return index;
}

bool ArenaMemory::CanReplace(uint32_t index, bool lent) {
  // Prefault still uses the descriptors.
  if (!prefault_.first_over()) return false;
  if (!IsThere(index) || lent) return true;
  MutexLock lock(mu_);
  if (retired_.HasRoom(grid_.BytesOf(index))) return true;
  retired_.Sweep();
  return retired_.HasRoom(grid_.BytesOf(index)) || !MayBeHeldByOthers(fds_[index]);
}

bool ArenaMemory::IsStuck(uint32_t index) const {
  MutexLock lock(mu_);
  return !retired_.HasRoom(grid_.BytesOf(index)) && MayBeHeldByOthers(fds_[index]);
}

Status ArenaMemory::Seal(const SegmentPlace& place) {
  const int seals = F_SEAL_SEAL | (place.lending == Lending::kSealed ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fds_[place.index], F_ADD_SEALS, seals) == 0) return OkStatus();
  return Errorf(StatusCode::kFailedPrecondition, "host arena: sealing segment {}: {}", place.id,
                std::strerror(errno));
}

bool ArenaMemory::Replace(uint32_t index, bool lent) {
  int& fd = fds_[index];
  const int old = fd;
  const uint64_t bytes = grid_.BytesOf(index);
  // Punched memory has no pages. Those whom it was lent to may touch it again, at their own cost.
  const bool punched = old >= 0 && lent && PunchAll(old, bytes);
  const bool held = old >= 0 && !punched && MayBeHeldByOthers(old);
  if (held) {
    MutexLock lock(mu_);
    if (!retired_.Take(bytes)) return false;
  }
  if (huge_pages_ && !held && old >= 0) {
    // There are just as many huge pages as the arena needs: the old ones go first.
    (void)mmap(Segment(index).data(), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    close(old);
    fd = -1;
  }
  const Status mapped = MapSegment(index, huge_pages_);
  if (!mapped.ok()) {
    log::Warn("host_arena_segment_not_renewed",
              {{"segment", log::Num(index)}, {"reason", Message(mapped)}});
    if (held) {
      MutexLock lock(mu_);
      retired_.GiveBack(bytes);
    }
    // A failed mapping of huge pages has taken the old one away: the segment is out of use until
    // there are pages.
    if (huge_pages_ && fd >= 0) close(std::exchange(fd, -1));
    return false;
  }
  if (held) {
    MutexLock lock(mu_);
    retired_.Add(old, bytes);
  } else if (old >= 0 && !huge_pages_) {
    close(old);
  }
  return true;
}

}  // namespace cairn::cache
