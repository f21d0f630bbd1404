#include "services/worker/compute/device/kv_mirror.h"

#include <algorithm>
#include <utility>

#include "cairn/common/clock.h"
#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {
namespace {

// A load or a read has its slots for milliseconds. Longer than this only on a device that hangs.
constexpr Duration kMostWait = std::chrono::seconds(30);
constexpr int64_t kReadShare = 4;  // At most one in this many slots may be read at a time.

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
    slot.settled = false;
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
  if (slot == nullptr && loads_ + reads_ > 0) {
    pass_waits_ = true;
    ended_.WaitUntil(mu_, SteadyClock::Get().Now() + kMostWait,
                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                       slot = Find(stamp);
                       return slot != nullptr || loads_ + reads_ == 0;
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
  for (Slot& slot : slots_) {
    if (slot.stamp == 0 || slot.pass != pass_) continue;
    if (!failed) {
      slot.settled = HasAllLayers(slot);
      continue;
    }
    slot.has_layer.assign(layers_, 0);
    slot.settled = false;
    if (slot.loads + slot.reads > 0) continue;
    by_stamp_.erase(slot.stamp);
    slot.stamp = 0;
  }
}

KvMirror::Slot* KvMirror::BeginLoad(uint64_t stamp) {
  MutexLock lock(mu_);
  Slot* const slot = pass_waits_ ? nullptr : Find(stamp);
  if (slot == nullptr || slot->reads > 0) return nullptr;
  ++slot->loads;
  ++loads_;
  return slot;
}

void KvMirror::EndLoad(Slot* slot, int layer, bool good) {
  MutexLock lock(mu_);
  --slot->loads;
  --loads_;
  ended_.NotifyAll();
  slot->has_layer[static_cast<size_t>(layer)] = good ? 1 : 0;
  slot->settled = slot->settled && good;
}

bool KvMirror::HasAllLayers(const Slot& slot) const {
  return std::find(slot.has_layer.begin(), slot.has_layer.end(), 0) == slot.has_layer.end();
}

const KvMirror::Slot* KvMirror::BeginRead(uint64_t stamp) {
  MutexLock lock(mu_);
  const auto found = by_stamp_.find(stamp);
  if (found == by_stamp_.end() || pass_waits_ ||
      static_cast<int64_t>(reads_) >= slot_count_ / kReadShare) {
    return nullptr;
  }
  Slot& slot = slots_[static_cast<size_t>(found->second)];
  if (!slot.settled || slot.loads > 0) return nullptr;
  ++slot.reads;
  ++reads_;
  return &slot;
}

void KvMirror::EndRead(const Slot* slot) {
  MutexLock lock(mu_);
  --slots_[static_cast<size_t>(slot - slots_.data())].reads;
  --reads_;
  ended_.NotifyAll();
}

}  // namespace cairn::worker
