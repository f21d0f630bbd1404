#include "services/cache/store/engine/block_intake.h"

#include <algorithm>

namespace cairn::cache {

Status BlockIntake::MakeIndexRoom() {
  const uint64_t used = context_.IndexBytes() + context_.MapBytes();
  if (used < context_.options.max_index_bytes) return OkStatus();
  const auto kinds = context_.tiers.kinds();
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    if (evictor_.EvictOne(*kind)) return OkStatus();
  }
  return Errorf(StatusCode::kResourceExhausted,
                "index: {} bytes used, the limit is {}, and nothing can be evicted", used,
                context_.options.max_index_bytes);
}

BlockRef BlockIntake::Show(NamespaceState& ns, const BlockKey& key,
                           const PendingBlocks::Complete& block) {
  const bool inserted = ns.index.Insert(key, block.parent, block.parts, TierKind::kHost,
                                        block.recompute_seconds, context_.UseTicksNow());
  CAIRN_CHECK(inserted);
  const BlockRef ref = *ns.index.Find(key);
  if (block.at_start) ns.index.MarkAtStart(ref);
  if (context_.tiers.persistent != nullptr) ns.index.SetDirty(ref, TierKind::kHost, true);
  context_.Publish(CacheEvent::Kind::kStored, ns, key, TierKind::kHost, ns.index.ParentOf(ref),
                   ns.index.PoolAt(ref));
  return ref;
}

Result<Extents> BlockIntake::Reserve(NamespaceState& ns, const BlockKey& key,
                                     std::span<const SourceBlock::Part> parts) {
  CAIRN_RETURN_IF_ERROR(MakeIndexRoom());
  {
    NamespaceLock lock(ns, context_.tiers);
    if (ns.dropped.load(std::memory_order_relaxed)) {
      return Errorf(StatusCode::kNotFound, "namespace {} was dropped", ns.fingerprint.Hex());
    }
    if (ns.index.FindAlive(key) && !context_.DropIfOver(ns, key, &lock.released)) {
      return Errorf(StatusCode::kAlreadyExists, "block {} is here", key.Hex());
    }
    ns.pending.AddWriter(key);
  }
  absl::InlinedVector<uint32_t, 1> lengths;
  for (const SourceBlock::Part& part : parts) lengths.push_back(part.bytes);
  // A block that comes in waits for its copy to disk, or stays pinned until the reader has it:
  // without a rest, nobody could write until then.
  const uint64_t keep_free = context_.tiers.host->GetStats().capacity_bytes / 8;
  const Victims victims{.leased = false, .beneficiary = ns.tenant().get()};
  // It counts again as soon as the block is shown: what comes in from sources at a time is bounded.
  const auto held = evictor_.Hold(ns, TierKind::kHost, lengths, victims);
  auto room = held.ok() ? evictor_.ReserveAll(TierKind::kHost, lengths, keep_free, victims,
                                              evictor_.RoomOf(ns), &ns)
                        : held.status();
  if (!room.ok()) Abort(ns, key, {});
  return room;
}

void BlockIntake::Abort(NamespaceState& ns, const BlockKey& key, std::span<const Extent> room) {
  {
    NamespaceLock lock(ns, context_.tiers);
    ns.pending.RemoveWriter(key);
  }
  context_.arrivals.Tell(&ns, key);
  evictor_.ReleaseAll(TierKind::kHost, room);
}

Result<PinId> BlockIntake::Commit(const NamespacePtr& ns_ptr, const BlockKey& key,
                                  const SourceBlock& block, std::span<const Extent> room) {
  NamespaceState& ns = *ns_ptr;
  PendingBlocks::Complete complete{{}, block.parent, block.recompute_seconds, block.at_start};
  if (complete.parent == key) complete.parent.reset();
  PinId pin = kNoPin;
  {
    NamespaceLock lock(ns, context_.tiers);
    if (ns.dropped.load(std::memory_order_relaxed)) {
      return Errorf(StatusCode::kNotFound, "namespace {} was dropped", ns.fingerprint.Hex());
    }
    ns.pending.RemoveWriter(key);
    if (const auto here = ns.index.FindAlive(key)) {
      for (const Extent& extent : room) lock.released.push_back({TierKind::kHost, extent});
      return ns.index.PinBlock(*here);
    }
    for (size_t i = 0; i < block.parts.size(); ++i) {
      PartPlace& place = complete.parts.emplace_back(PartPlace{.rect = block.parts[i].rect});
      place.Set(TierKind::kHost, room[i]);
    }
    std::sort(complete.parts.begin(), complete.parts.end(),
              [](const PartPlace& a, const PartPlace& b) { return a.rect < b.rect; });
    pin = ns.index.PinBlock(Show(ns, key, complete));
  }
  context_.arrivals.Tell(&ns, key);
  CopyLater(ns_ptr, key, complete.parts);
  return pin;
}

void BlockIntake::CopyLater(const NamespacePtr& ns, const BlockKey& key, const PartPlaces& parts) {
  uint64_t bytes = 0, room = 0;
  for (const PartPlace& part : parts) {
    bytes += part.bytes[TierKind::kHost];
    room += HostRoom(part.bytes[TierKind::kHost]);
  }
  write_back_.Add(ns, key, bytes, room);
}

}  // namespace cairn::cache
