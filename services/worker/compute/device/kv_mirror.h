#pragma once
// The pages of running sequences in the memory of a device.
//
// The pool's pages in the host (kv_pool.h) are the originals: fetches write them, pushes and parked
// requests read them. A page has a slot here while a forward pass uses it, and afterwards until
// another page needs the slot. A slot knows for each layer whether it has the page's rows. Pages
// are told apart by the stamp of their bytes (KvSequence::PageStamp), not by their address: an
// address may have other bytes later.
//
// Not thread-safe.

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cairn/common/status.h"
#include "common/device/device.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

class KvMirror {
 public:
  struct Slot {
    uint64_t address = 0;              // layout.page_bytes() of the device.
    std::vector<uint8_t> has_layer;    // Of the page's rows before the pass.
    uint64_t stamp = 0;                // 0: unused.
    uint64_t pass = 0;                 // That used it last.
    std::list<int32_t>::iterator use;  // In the order of use.
  };

  // RESOURCE_EXHAUSTED: the device has no room for so many slots.
  static Result<std::unique_ptr<KvMirror>> Create(const std::shared_ptr<device::Device>& device,
                                                  const KvLayout& layout, int64_t slots);

  // Slots of earlier passes may be given to other pages from now on.
  void BeginPass() { ++pass_; }
  // The slot of these bytes, valid until the next pass. RESOURCE_EXHAUSTED: the pass uses them all.
  Result<Slot*> Hold(uint64_t stamp);
  // After a pass that failed: what its slots have is not known.
  void ForgetPass();

  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  KvMirror() = default;

  device::DeviceMemory memory_;
  size_t layers_ = 0;
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, int32_t> by_stamp_;
  std::list<int32_t> by_use_;  // The one that was not used for the longest time first.
  uint64_t pass_ = 0;
};

}  // namespace cairn::worker
