#include "services/cache/store/engine/stored_reads.h"

#include <algorithm>
#include <utility>

#include "services/cache/store/block/part_grid.h"

namespace cairn::cache {
namespace {

// The owner that keeps the bytes of a block that was read.
struct Hold {
  // First made, last gone: until then the engine, and its account, are there.
  std::shared_ptr<PathPins> pins;
  std::shared_ptr<PathPins> place;  // The pins of bytes that are mapped.
  MemoryCharge memory;
  std::shared_ptr<const void> buffers;  // nullptr: the bytes lie in a mapped tier.
};

Status NotHere(const BlockKey& key) {
  return Errorf(StatusCode::kNotFound, "field 'key': no tier has block {}", key.Hex());
}

class Read final : public StoredBlockRead {
 public:
  Read(const FetchServices& services, const NamespacePtr& ns, const BlockKey& key)
      : services_(services),
        pins_(std::make_shared<PathPins>(services.context, ns)),
        lease_(std::make_shared<Lease>()) {
    lease_->ns = ns;
    slot_.key = key;
  }

  // Pins the block, and takes what the index knows of it.
  Status Find() {
    NodeContext& context = *services_.context;
    NamespaceState& ns = *lease_->ns;
    size_t parts = 0;
    {
      NamespaceLock lock(ns, context.tiers);
      const auto ref = ns.dropped.load(std::memory_order_relaxed)
                           ? std::nullopt
                           : ns.index.FindServed(slot_.key, context.UseTicksNow());
      if (!ref) return NotHere(slot_.key);
      pins_->Add(ns.index.PinBlock(*ref));
      const BlockMeta& meta = ns.index.MetaAt(*ref);
      block_.parent = ns.index.ParentOf(*ref);
      block_.at_start = (meta.flags & BlockMeta::kAtStart) != 0;
      block_.recompute_seconds = meta.recompute_seconds;
      parts = ns.index.PartsOf(*ref).size();
    }
    if (parts > SourceBlock::kMaxParts) {
      return Errorf(StatusCode::kResourceExhausted,
                    "block {} has {} parts, expected at most {} to send", slot_.key.Hex(), parts,
                    SourceBlock::kMaxParts);
    }
    CAIRN_ASSIGN_OR_RETURN(memory_,
                           ChargeFetch(&context.memory, kFixedBytes + parts * kBytesOfPart));
    return OkStatus();
  }

  std::optional<DeviceBlock> OnDevice() override {
    NodeContext& context = *services_.context;
    Tier* const tier = context.tiers.Get(TierKind::kDevice);
    if (tier == nullptr) return std::nullopt;
    NamespaceState& ns = *lease_->ns;
    PartPlaces places;
    {
      NamespaceLock lock(ns, context.tiers);
      const auto ref = ns.dropped.load(std::memory_order_relaxed)
                           ? std::nullopt
                           : ns.index.FindServed(slot_.key, context.UseTicksNow());
      if (!ref || !ns.index.MetaAt(*ref).in(TierKind::kDevice)) return std::nullopt;
      // The block may have gone since Find, and come back: a pin for what is here now.
      pins_->Add(ns.index.PinBlock(*ref));
      places = ns.index.PartsOf(*ref);
    }
    std::sort(places.begin(), places.end(),
              [](const PartPlace& a, const PartPlace& b) { return a.rect < b.rect; });
    DeviceBlock block{.block = block_, .extents = {}, .hold = pins_};
    for (const PartPlace& place : places) {
      const Extent extent = place.In(TierKind::kDevice);
      if (tier->IsLost(extent)) return std::nullopt;
      block.block.parts.push_back({place.rect, extent.length});
      block.extents.push_back(extent);
    }
    // As in Next.
    if (ns.dropped.load() || block.extents.size() > SourceBlock::kMaxParts) return std::nullopt;
    return block;
  }

  Result<StoredBlock> Next(TimePoint deadline) override {
    NodeContext& context = *services_.context;
    for (;;) {
      const uint64_t seen = context.progress.Now();
      const bool settled = AdvanceSlot(services_, lease_, slot_);
      // Whatever was found: what a bump has hidden is given to nobody.
      if (lease_->ns->dropped.load()) return NotHere(slot_.key);
      if (settled && slot_.state == FetchSlot::State::kFailed) return Failure();
      if (settled && IsSound()) return Take();
      if (settled) {
        RejectSlot(services_, lease_, slot_, /*trace=*/"");
      } else if (!context.progress.WaitPast(seen, *context.clock, deadline)) {
        return Errorf(StatusCode::kDeadlineExceeded, "block {} is not read yet", slot_.key.Hex());
      }
    }
  }

 private:
  static constexpr uint64_t kFixedBytes =
      sizeof(FetchSlot) + sizeof(Lease) + sizeof(StoredBlock) + sizeof(Hold) + 2 * kPinBytes + 512;
  static constexpr uint64_t kBytesOfPart = sizeof(PartPlace) + sizeof(FetchSlot::Part) +
                                           sizeof(SourceBlock::Part) +
                                           sizeof(std::span<const std::byte>);

  // Bytes that were read are verified, since only this removes a bad copy.
  bool IsSound() const {
    if (services_.context->tiers.IsMapped(slot_.tier)) return true;
    const PartForm& form = lease_->ns->storage().in_tier[slot_.tier];
    return std::all_of(slot_.parts.begin(), slot_.parts.end(), [&](const FetchSlot::Part& part) {
      return VerifyPartBytes(form, part.rect, part.bytes).ok();
    });
  }

  Status Failure() const {
    switch (slot_.reason) {
      case MissReason::kCorrupt:
        return Errorf(StatusCode::kDataLoss, "block {} was damaged", slot_.key.Hex());
      case MissReason::kRefused:
        return Errorf(StatusCode::kResourceExhausted, "block {}: there is no room to read it",
                      slot_.key.Hex());
      default:
        return NotHere(slot_.key);
    }
  }

  StoredBlock Take() {
    StoredBlock block;
    static_cast<SourceBlock&>(block) = std::move(block_);
    auto hold = std::make_shared<Hold>();
    hold->pins = pins_;
    hold->place = slot_.pins;
    hold->memory = std::move(memory_);
    for (const FetchSlot::Part& part : slot_.parts) {
      block.parts.push_back({part.rect, static_cast<uint32_t>(part.bytes.size())});
      block.bytes.push_back(part.bytes);
      hold->buffers = part.buffer;  // The same of all parts.
    }
    block.hold = std::move(hold);
    return block;
  }

  const FetchServices services_;
  // First made, last gone, as in a Hold.
  const std::shared_ptr<PathPins> pins_;
  // In no session's hands: the slot finds the namespace in it, and moves that wait for the block
  // end with it.
  const LeasePtr lease_;
  MemoryCharge memory_;
  FetchSlot slot_;
  SourceBlock block_;
};

}  // namespace

Result<std::unique_ptr<StoredBlockRead>> StoredReads::Begin(const Fingerprint& fingerprint,
                                                            const BlockKey& key) const {
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, services_.context->registry.Get(fingerprint));
  auto read = std::make_unique<Read>(services_, ns, key);
  CAIRN_RETURN_IF_ERROR(read->Find());
  return read;
}

}  // namespace cairn::cache
