#pragma once
// The memories of this process that may take part in moves, by number. Peers name them by it.

#include <cstdint>
#include <map>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::link {

// Thread-safe. It owns no memory: whoever adds one keeps it until it is removed, and until the
// moves that use it have let go of what keeps their bytes (link_reader.h, link_holder.h).
class Memories {
 public:
  struct Memory {
    uint32_t number = 0;
    uint64_t address = 0;  // In this process, of its device.
    uint64_t bytes = 0;
  };

  // Returns its number. Numbers are not used again.
  uint32_t Add(uint64_t address, uint64_t bytes) {
    MutexLock lock(mu_);
    memories_.emplace(next_, Memory{next_, address, bytes});
    return next_++;
  }
  void Remove(uint32_t number) {
    MutexLock lock(mu_);
    memories_.erase(number);
  }
  // All of them, by number.
  std::vector<Memory> all() const {
    MutexLock lock(mu_);
    std::vector<Memory> all;
    for (const auto& [number, memory] : memories_) all.push_back(memory);
    return all;
  }
  // The address of `bytes` bytes at `offset`. NOT_FOUND: there is no such memory.
  // INVALID_ARGUMENT: they end beyond it.
  Result<uint64_t> Find(uint32_t number, uint64_t offset, uint64_t bytes) const {
    MutexLock lock(mu_);
    const auto it = memories_.find(number);
    if (it == memories_.end()) {
      return Errorf(StatusCode::kNotFound, "memory {}: this process has no such memory", number);
    }
    const Memory& memory = it->second;
    if (offset > memory.bytes || bytes > memory.bytes - offset) {
      return InvalidArgument("memory {}: got {} bytes at {}, expected at most {} in all", number,
                             bytes, offset, memory.bytes);
    }
    return memory.address + offset;
  }

 private:
  mutable Mutex mu_;
  std::map<uint32_t, Memory> memories_ ABSL_GUARDED_BY(mu_);
  uint32_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::link
