#include "services/worker/compute/device/kv_mirror.h"

#include <algorithm>

#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {

Result<std::unique_ptr<KvMirror>> KvMirror::Create(const std::shared_ptr<device::Device>& device,
                                                   const KvLayout& layout, int64_t slots) {
  std::unique_ptr<KvMirror> mirror(new KvMirror);
  CAIRN_ASSIGN_OR_RETURN(
      mirror->memory_,
      AllocateFor("the KV pool", static_cast<uint64_t>(slots) * layout.page_bytes(), device));
  mirror->layers_ = static_cast<size_t>(layout.layers);
  mirror->slots_.resize(static_cast<size_t>(slots));
  for (int32_t i = 0; i < slots; ++i) {
    Slot& slot = mirror->slots_[static_cast<size_t>(i)];
    slot.address = mirror->memory_.address() + static_cast<uint64_t>(i) * layout.page_bytes();
    slot.use = mirror->by_use_.insert(mirror->by_use_.end(), i);
  }
  return mirror;
}

Result<KvMirror::Slot*> KvMirror::Hold(uint64_t stamp) {
  const auto found = by_stamp_.find(stamp);
  const int32_t index = found != by_stamp_.end() ? found->second : by_use_.front();
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (found == by_stamp_.end()) {
    if (slot.stamp != 0 && slot.pass == pass_) {
      return Errorf(StatusCode::kResourceExhausted,
                    "KV on the device: the forward pass needs more than its {} pages",
                    slots_.size());
    }
    by_stamp_.erase(slot.stamp);
    by_stamp_.emplace(stamp, index);
    slot.stamp = stamp;
    slot.has_layer.assign(layers_, 0);
  }
  slot.pass = pass_;
  by_use_.splice(by_use_.end(), by_use_, slot.use);
  return &slot;
}

void KvMirror::ForgetPass() {
  for (Slot& slot : slots_) {
    if (slot.stamp == 0 || slot.pass != pass_) continue;
    by_stamp_.erase(slot.stamp);
    slot.stamp = 0;
  }
}

}  // namespace cairn::worker
