#pragma once
// The memory of the fake devices, and what of the host's is pinned. Device memory is a memfd that
// is mapped here, so other processes can import it. Not thread-safe.
//
// Fresh memory is not zero. Memory that is given back is poisoned, unless it was exported (somebody
// may have it), and its addresses are never used again.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/device/driver_table.h"

namespace cairn::device {

struct MemoryHandle {
  uint32_t device = 0;
  int descriptor = -1;
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool exportable = false;
  bool exported = false;
  bool imported = false;
};

}  // namespace cairn::device

namespace cairn::device::fake {

class Memories {
 public:
  ~Memories();

  // nullptr: the system has no memory.
  MemoryHandle* Allocate(uint32_t device, uint64_t bytes, bool exportable);
  MemoryHandle* Import(uint32_t device, int descriptor, uint64_t bytes);
  void Release(MemoryHandle* memory);
  uint64_t BytesOf(uint32_t device) const;

  void* AllocateHost(uint64_t bytes);
  // Its bytes; nullopt: nothing was allocated there.
  std::optional<uint64_t> ReleaseHost(void* address);
  void Register(uint64_t address, uint64_t bytes, bool read_only);
  std::optional<uint64_t> Unregister(uint64_t address);
  bool IsRegistered(uint64_t address, uint64_t bytes) const;
  uint64_t PinnedBytes() const;
  uint64_t handles() const { return memories_.size() + pinned_.size() + registered_.size(); }

  // The kind of memory at a range of addresses.
  enum class Kind {
    kDevice,
    kPinned,
    kRegistered,
    kReadOnly,  // Registered, and not to be written.
    kStale,     // Registered, but its mapping has changed since.
    kPageable,  // Other memory of the host.
    kReleased,  // Device memory that was given back.
    kBeyond,    // Begins in device memory, ends outside of it.
  };
  struct Place {
    Kind kind = Kind::kPageable;
    uint32_t device = 0;
  };
  Place Find(uint64_t address, uint64_t bytes) const;

 private:
  struct Registered {
    uint64_t bytes = 0;
    bool read_only = false;
    std::string mapping;
  };
  MemoryHandle* Keep(MemoryHandle memory);

  std::map<uint64_t, std::unique_ptr<MemoryHandle>> memories_;  // By address.
  std::map<uint64_t, uint64_t> released_;                       // Bytes by address.
  std::map<uint64_t, uint64_t> pinned_;
  std::map<uint64_t, Registered> registered_;
};

}  // namespace cairn::device::fake
