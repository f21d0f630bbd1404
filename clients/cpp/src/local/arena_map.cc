#include "clients/cpp/src/local/arena_map.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace cairn::client::local {

Result<std::shared_ptr<const ArenaSegment>> ArenaSegment::Map(const shm::SegmentEntry& entry,
                                                              int fd) {
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &file) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || file.st_size < 0 ||
      static_cast<uint64_t>(file.st_size) < entry.bytes) {
    return Errorf(StatusCode::kDataLoss,
                  "node: segment {}: got {} bytes with seals {}, expected {} that cannot shrink",
                  entry.id, file.st_size, seals, entry.bytes);
  }
  const bool writable = (entry.flags & shm::kWritable) != 0;
  void* base =
      mmap(nullptr, entry.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return Errorf(StatusCode::kUnavailable, "segment {}: mapping {} bytes: {}", entry.id,
                  entry.bytes, std::strerror(errno));
  }
  const bool frozen = (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0;
  return std::shared_ptr<const ArenaSegment>(
      new ArenaSegment(static_cast<std::byte*>(base), entry.bytes, writable, frozen));
}

ArenaSegment::~ArenaSegment() { munmap(base_, bytes_); }

Status ArenaMap::Add(const shm::SegmentEntry& entry, int fd) {
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<const ArenaSegment> segment, ArenaSegment::Map(entry, fd));
  MutexLock lock(mu_);
  if (segments_.size() >= kMaxSegments) {
    return Errorf(StatusCode::kDataLoss, "node: more than {} segments", kMaxSegments);
  }
  if (!segments_.emplace(entry.id, std::move(segment)).second) {
    return Errorf(StatusCode::kDataLoss, "node: segment {} came twice", entry.id);
  }
  return OkStatus();
}

void ArenaMap::Remove(uint32_t id) {
  std::shared_ptr<const ArenaSegment> gone;  // Unmapped outside the lock.
  MutexLock lock(mu_);
  const auto it = segments_.find(id);
  if (it == segments_.end()) return;
  gone = std::move(it->second);
  segments_.erase(it);
}

std::shared_ptr<const ArenaSegment> ArenaMap::Find(uint32_t id) const {
  MutexLock lock(mu_);
  const auto it = segments_.find(id);
  return it == segments_.end() ? nullptr : it->second;
}

}  // namespace cairn::client::local
