#pragma once
// The pages of running sequences in the memory of a device.
//
// The pool's pages in the host (kv_pool.h) are the originals: pushes and parked requests read them.
// A page has a slot here while a forward pass uses it, or a fetch writes to it, and afterwards
// until another page needs the slot. A slot knows for each layer whether it has the page's rows.
// Pages are told apart by the stamp of their bytes (KvSequence::PageStamp), not by their address:
// an address may have other bytes later.
//
// Thread-safe: one thread makes passes, others load what they fetch (slice_decoder.h), and others
// read whole pages to encode them (page_encoder.h). Each of them writes layers of a slot's memory
// that the others do not read yet.

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

class KvMirror {
 public:
  // Users read its address alone, no other field.
  struct Slot {
    uint64_t address = 0;              // layout.page_bytes() of the device. Constant.
    std::vector<uint8_t> has_layer;    // The layers of the page's rows before the pass.
    uint64_t stamp = 0;                // 0: unused.
    uint64_t pass = 0;                 // The pass that used it last.
    uint32_t loads = 0;                // Under way.
    uint32_t reads = 0;                // Under way.
    bool settled = false;              // All layers are there, and no pass is bringing one.
    std::list<int32_t>::iterator use;  // In the order of use.
  };

  // RESOURCE_EXHAUSTED: the device has no room for this many slots.
  static Result<std::unique_ptr<KvMirror>> Create(const std::shared_ptr<device::Device>& device,
                                                  const KvLayout& layout, int64_t slots);

  // ---- The thread that makes passes ----
  void BeginPass();
  // The slot of these bytes, this pass's until it ends. Waits for loads and reads that have the
  // last free ones. RESOURCE_EXHAUSTED: the pass uses them all.
  Result<Slot*> Hold(uint64_t stamp);
  // Numbers of the slots that lack the layer. They have it from now on: the caller brings it.
  std::vector<size_t> TakeMissing(std::span<Slot* const> slots, int layer);
  // `failed`: what the pass's slots have is not known.
  void EndPass(bool failed);

  // ---- Threads that load ----
  // The slot of these bytes, for one slice, until EndLoad, which comes soon. Null: none is free.
  Slot* BeginLoad(uint64_t stamp);
  // `good`: the layer's rows are there.
  void EndLoad(Slot* slot, int layer, bool good);

  // ---- Threads that encode ----
  // The slot of these bytes, to read all layers, until EndRead, which comes soon. Null: it has not
  // all of them, or enough slots are read already: a pass finds three of four without a wait.
  const Slot* BeginRead(uint64_t stamp);
  void EndRead(const Slot* slot);

  uint64_t address() const { return memory_.address(); }  // The address of the first slot.
  int64_t slots() const { return slot_count_; }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  KvMirror() = default;
  // The slot of these bytes, the last used one from now on. Null: no slot is free.
  Slot* Find(uint64_t stamp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasAllLayers(const Slot& slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsFree(const Slot& slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return slot.loads == 0 && slot.reads == 0 &&
           !(in_pass_ && slot.stamp != 0 && slot.pass == pass_);
  }

  // Constant after Create.
  device::DeviceMemory memory_;
  size_t layers_ = 0;
  int64_t slot_count_ = 0;

  Mutex mu_;
  CondVar ended_;                                 // A load or a read.
  uint64_t loads_ ABSL_GUARDED_BY(mu_) = 0;       // Under way.
  uint64_t reads_ ABSL_GUARDED_BY(mu_) = 0;       // Under way.
  bool pass_waits_ ABSL_GUARDED_BY(mu_) = false;  // For a slot: no load nor read begins.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);  // Never moved.
  std::unordered_map<uint64_t, int32_t> by_stamp_ ABSL_GUARDED_BY(mu_);
  // The one that was not used for the longest time first.
  std::list<int32_t> by_use_ ABSL_GUARDED_BY(mu_);
  uint64_t pass_ ABSL_GUARDED_BY(mu_) = 0;
  bool in_pass_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::worker
