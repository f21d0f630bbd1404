#pragma once
// The memory of a segment: a memfd, and what the kernel knows of those who hold it.
//
// A sealed memory that was handed out cannot be taken back: truncating it would give its readers
// SIGBUS, and F_SEAL_FUTURE_WRITE forbids to punch holes into it. Its pages go when the last
// descriptor and the last mapping go. The kernel counts them for us: other processes get the file
// opened a second time, and a write lease (F_SETLEASE) is granted only while nobody else has the
// file open or mapped. So nobody needs to be believed about having unmapped something.
//
// Where the kernel does not count files that are open to read only (no CONFIG_IMA), a process that
// opens the descriptor again that way is not seen.

#include <cstdint>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cache {

// A descriptor for another process, which the caller owns.
Result<int> OpenForOthers(int fd);

// False: the kernel knows that no other process has the memory open or mapped. Two or three system
// calls.
bool MayBeHeldByOthers(int fd);

// Gives the pages back, so that the memory is zero again. False: it is sealed against writing.
bool PunchAll(int fd, uint64_t bytes);

// Memories that have no segment any more, but may be mapped by other processes. Their pages count
// for this process's control group, so their sum is bounded. Owns their descriptors.
// Thread-compatible.
class RetiredMemories {
 public:
  ~RetiredMemories();
  void set_limit(uint64_t bytes) { limit_ = bytes; }
  uint64_t limit() const { return limit_; }
  // Forgets those that nobody holds any more. O(memories).
  void Sweep();
  // False when there is no room, also after a sweep. Takes the room for `bytes`, which Add or
  // GiveBack must follow.
  bool Take(uint64_t bytes);
  void Add(int fd, uint64_t bytes) { memories_.push_back({fd, bytes}); }
  void GiveBack(uint64_t bytes) { bytes_ -= bytes; }
  bool HasRoom(uint64_t bytes) const { return bytes_ + bytes <= limit_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Memory {
    int fd = -1;
    uint64_t bytes = 0;
  };
  std::vector<Memory> memories_;
  uint64_t limit_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace cairn::cache
