#include "services/worker/compute/device/prefix_mirror.h"

#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_weights.h"

namespace cairn::worker {

using kernels::batch::KeptRows;

Result<const KeptRows*> PrefixMirror::Get(const std::shared_ptr<const RaggedPrefix>& prefix,
                                          device::Stream* stream) {
  // Forward passes are over when the next one begins, so nothing reads what goes here.
  entries_.remove_if([](const Entry& entry) { return entry.prefix.expired(); });
  for (const Entry& entry : entries_) {
    if (entry.address == prefix.get()) return entry.on_device;
  }
  const KvLayout& kv = prefix->layout();
  const size_t plane = UnitValueOffset(kv);
  int64_t units = 0;
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int head = 0; head < kv.kv_heads; ++head) {
      units += std::ssize(prefix->units(layer, head));
    }
  }
  ArenaPlan plan;
  const size_t data = plan.Take<std::byte>(units * static_cast<int64_t>(2 * plane));
  const size_t list = plan.Take<const std::byte*>(units);
  const size_t heads = plan.Take<KeptRows>(int64_t{kv.layers} * kv.kv_heads);
  Entry entry;
  entry.prefix = prefix;
  entry.address = prefix.get();
  CAIRN_ASSIGN_OR_RETURN(entry.memory, AllocateFor("a selected prefix", plan.bytes(), device_));
  const uint64_t base = entry.memory.address();
  std::vector<device::CopyTask> tasks;
  const auto copy = [&](uint64_t to, const void* from, uint64_t bytes) {
    if (bytes > 0) tasks.push_back({to, reinterpret_cast<uint64_t>(from), bytes});
  };
  for (int layer = 0; layer < kv.layers; ++layer) {
    for (int head = 0; head < kv.kv_heads; ++head) {
      entry.rows.push_back(
          {At<const std::byte*>(base, list) + entry.units.size(), prefix->rows(layer, head)});
      for (const std::byte* unit : prefix->units(layer, head)) {
        const uint64_t to = base + data + entry.units.size() * 2 * plane;
        entry.units.push_back(At<const std::byte>(to, 0));
        copy(to, unit, plane);
        copy(to + plane, unit + kv.plane_bytes(), plane);
      }
    }
  }
  copy(base + list, entry.units.data(), entry.units.size() * sizeof(entry.units[0]));
  copy(base + heads, entry.rows.data(), entry.rows.size() * sizeof(KeptRows));
  entry.on_device = At<const KeptRows>(base, heads);
  entries_.push_back(std::move(entry));
  const Status copied = stream->Copy("upload of a prefix", tasks);
  if (!copied.ok()) {
    entries_.pop_back();
    return copied;
  }
  return entries_.back().on_device;
}

}  // namespace cairn::worker
