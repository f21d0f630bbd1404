#include "services/worker/compute/device/kv_mirror.h"

#include <algorithm>
#include <utility>

#include "cairn/common/clock.h"
#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {
namespace {

// A load has its slots for milliseconds. Longer than this only on a device that hangs.
constexpr Duration kMostWait = std::chrono::seconds(30);

}  // namespace

Result<std::unique_ptr<KvMirror>> KvMirror::Create(const std::shared_ptr<device::Device>& device,
                                                   const KvLayout& layout, int64_t slots) {
  std::unique_ptr<KvMirror> mirror(new KvMirror);
  CAIRN_ASSIGN_OR_RETURN(
      mirror->memory_,
      AllocateFor("the KV pool", static_cast<uint64_t>(slots) * layout.page_bytes(), device));
  mirror->layers_ = static_cast<size_t>(layout.layers);
  mirror->slot_count_ = slots;
  MutexLock lock(mirror->mu_);
  mirror->slots_.resize(static_cast<size_t>(slots));
  for (int32_t i = 0; i < slots; ++i) {
    Slot& slot = mirror->slots_[static_cast<size_t>(i)];
    slot.address = mirror->memory_.address() + static_cast<uint64_t>(i) * layout.page_bytes();
    slot.use = mirror->by_use_.insert(mirror->by_use_.end(), i);
  }
  return mirror;
}

KvMirror::Slot* KvMirror::Find(uint64_t stamp) {
  const auto found = by_stamp_.find(stamp);
  if (found == by_stamp_.end()) {
    const auto victim = std::find_if(by_use_.begin(), by_use_.end(), [&](int32_t index) {
      mu_.AssertHeld();
      return IsFree(slots_[static_cast<size_t>(index)]);
    });
    if (victim == by_use_.end()) return nullptr;
    Slot& slot = slots_[static_cast<size_t>(*victim)];
    if (slot.stamp != 0) by_stamp_.erase(slot.stamp);
    by_stamp_.emplace(stamp, *victim);
    slot.stamp = stamp;
    slot.pass = 0;
    slot.has_layer.assign(layers_, 0);
    by_use_.splice(by_use_.end(), by_use_, slot.use);
    return &slot;
  }
  Slot& slot = slots_[static_cast<size_t>(found->second)];
  by_use_.splice(by_use_.end(), by_use_, slot.use);
  return &slot;
}

void KvMirror::BeginPass() {
  MutexLock lock(mu_);
  ++pass_;
  in_pass_ = true;
}

Result<KvMirror::Slot*> KvMirror::Hold(uint64_t stamp) {
  MutexLock lock(mu_);
  Slot* slot = Find(stamp);
  if (slot == nullptr && loads_ > 0) {
    pass_waits_ = true;
    load_ended_.WaitUntil(mu_, SteadyClock::Get().Now() + kMostWait,
                          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                            slot = Find(stamp);
                            return slot != nullptr || loads_ == 0;
                          });
    pass_waits_ = false;
  }
  if (slot == nullptr) {
    return Errorf(StatusCode::kResourceExhausted,
                  "KV on the device: the forward pass needs more than its {} pages", slot_count_);
  }
  slot->pass = pass_;
  return slot;
}

std::vector<size_t> KvMirror::TakeMissing(std::span<Slot* const> slots, int layer) {
  std::vector<size_t> missing;
  MutexLock lock(mu_);
  for (size_t i = 0; i < slots.size(); ++i) {
    uint8_t& has = slots[i]->has_layer[static_cast<size_t>(layer)];
    if (std::exchange(has, 1) == 0) missing.push_back(i);
  }
  return missing;
}

void KvMirror::EndPass(bool failed) {
  MutexLock lock(mu_);
  in_pass_ = false;
  if (!failed) return;
  for (Slot& slot : slots_) {
    if (slot.stamp == 0 || slot.pass != pass_) continue;
    slot.has_layer.assign(layers_, 0);
    if (slot.loads > 0) continue;
    by_stamp_.erase(slot.stamp);
    slot.stamp = 0;
  }
}

KvMirror::Slot* KvMirror::BeginLoad(uint64_t stamp) {
  MutexLock lock(mu_);
  Slot* const slot = pass_waits_ ? nullptr : Find(stamp);
  if (slot == nullptr) return nullptr;
  ++slot->loads;
  ++loads_;
  return slot;
}

void KvMirror::EndLoad(Slot* slot, int layer, bool good) {
  MutexLock lock(mu_);
  --slot->loads;
  --loads_;
  load_ended_.NotifyAll();
  slot->has_layer[static_cast<size_t>(layer)] = good ? 1 : 0;
}

}  // namespace cairn::worker
