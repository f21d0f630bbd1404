#include "services/cache/store/engine/recovery.h"

#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/log/log.h"
#include "services/cache/store/block/record.h"

namespace cairn::cache {
namespace {

// The budget is looked at once in this many blocks.
constexpr uint64_t kCheckBudgetEvery = 1024;

// Each record is looked at once and then forgotten: apart from the index that it makes, recovery
// needs no memory that grows with what is on disk. A node that ran at its limit starts again at it.
class Recovery {
 public:
  explicit Recovery(NodeContext& context) : context_(context), disk_(*context.tiers.persistent) {}

  Result<RecoveryResult> Run() {
    CAIRN_RETURN_IF_ERROR(ListNamespaces());
    CAIRN_RETURN_IF_ERROR(disk_.Recover([this](const Extent& extent, std::string_view bytes) {
      const auto record = DecodeRecord(bytes);
      if (record.status().code() == StatusCode::kUnimplemented) Refuse(record.status());
      if (record.ok()) Meet(record->fingerprint);
      if (!refused_.ok()) return true;
      if (record.ok() && record->bytes == extent.length && Show(extent, *record)) return true;
      ++result_.released;
      return false;
    }));
    CAIRN_RETURN_IF_ERROR(refused_);
    // Nothing of these is left that could come back.
    for (const auto& [fingerprint, ns] : unmet_) CAIRN_RETURN_IF_ERROR(disk_.DeleteMeta(ns.name));
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) Finish(*ns);
    return result_;
  }

 private:
  // A namespace of which no block was seen yet.
  struct Unmet {
    std::string name;  // The name of its record.
    std::shared_ptr<const StoredNamespace> stored;
    uint64_t generation = 0;
    bool dropped = false;
    Duration block_life{0};
  };

  // Blocks that this node cannot take are kept: it does not start, and says why.
  void Refuse(const Status& why) {
    if (!refused_.ok()) return;
    refused_ = Errorf(
        StatusCode::kFailedPrecondition,
        "disk.path: {}; none of these blocks was deleted. Start a node that can read them, or "
        "use another directory",
        Message(why));
  }

  Status ListNamespaces() {
    return disk_.ListMeta([&](std::string_view name, std::string_view value) {
      if (!name.starts_with(kNamespaceMetaPrefix)) return;
      auto record = DecodeNamespaceRecord(value);
      if (!record.ok()) {
        log::Warn("namespace_record_unreadable",
                  {{"name", std::string(name)}, {"error", Message(record.status())}});
        if (record.status().code() == StatusCode::kUnimplemented) {
          newer_.emplace(name, record.status());
        }
        return;
      }
      auto stored = StoredNamespace::Of(std::move(record->spec));
      const Fingerprint fingerprint = stored->fingerprint;
      unmet_.emplace(fingerprint, Unmet{std::string(name), std::move(stored), record->generation,
                                        record->dropped, record->block_life});
    });
  }

  // Opens the namespace with the first block that names it.
  void Meet(const Fingerprint& fingerprint) {
    const auto it = unmet_.find(fingerprint);
    if (it == unmet_.end()) {
      if (newer_.empty() || context_.registry.Find(fingerprint) != nullptr) return;
      if (const auto newer = newer_.find(NamespaceMetaName(fingerprint)); newer != newer_.end()) {
        Refuse(newer->second);
      }
      return;
    }
    const Unmet ns = std::move(it->second);
    unmet_.erase(it);
    context_.registry.RememberGeneration(fingerprint, ns.generation);
    if (!ns.dropped) Open(fingerprint, ns.stored, ns.block_life);
  }

  void Open(const Fingerprint& fingerprint, const std::shared_ptr<const StoredNamespace>& stored,
            Duration block_life) {
    auto charge = context_.memory.Charge(MemoryItem::kNamespaces, NamespaceState::Cost(*stored));
    if (!charge.ok()) return Refuse(charge.status());
    const auto opened = context_.registry.Open(
        fingerprint, stored->spec.tenant,
        [&](uint64_t generation) {
          auto ns = std::make_shared<NamespaceState>(
              stored, generation, context_.options.eviction, context_.seed,
              std::make_shared<MemoryCharge>(*std::move(charge)));
          ns->persisted.store(true);
          MutexLock lock(ns->mu);
          ns->SetLife(block_life);
          return ns;
        },
        /*restores=*/true);
    if (!opened.ok()) return Refuse(opened.status());
    ++result_.namespaces;
    if (const Status& unreadable = stored->storage.status(); !unreadable.ok()) {
      ++result_.unreadable_namespaces;
      log::Warn("namespace_unreadable", {{"fingerprint", fingerprint.Hex()},
                                         {"tenant", stored->spec.tenant},
                                         {"recipe", stored->spec.recipe},
                                         {"error", Message(unreadable)}});
    }
  }

  // False when the extent is of no use.
  bool Show(const Extent& extent, const BlockRecord& record) {
    const NamespacePtr ns = context_.registry.Find(record.fingerprint);
    if (ns == nullptr || ns->generation != record.generation || ns->whole != record.grid ||
        !ns->grid.Contains(record.rect)) {
      return false;
    }
    if (result_.blocks % kCheckBudgetEvery == 0) {
      over_budget_ = context_.IndexBytes() >= context_.options.max_index_bytes;
    }
    if (over_budget_) return false;
    // Uses after the part was written are not recorded: a block is over too early rather than too
    // late. One of an older record counts as used now.
    const uint32_t last_use = ns->life_ticks() != 0 && record.used_at
                                  ? context_.UseTicksOf(*record.used_at)
                                  : context_.UseTicksAt(context_.start);
    if (ns->life_ticks() != 0 && uint64_t{last_use} + ns->life_ticks() < context_.UseTicksNow()) {
      context_.counters.expired_blocks.Add();
      context_.gone.Remember(record.fingerprint, record.key, RecentlyGone::Why::kExpired);
      return false;
    }
    PartPlace place{.rect = record.rect};
    place.Set(disk_.kind(), extent);
    NamespaceLock lock(*ns, context_.tiers);
    if (ns->index.FindAlive(record.key)) return false;  // Written twice.
    if (ns->pending.Fit(record.key, record.rect) != PartFit::kFree) return false;
    std::vector<PartPlace> replaced;
    const auto block = ns->pending.Commit(
        record.key, place, {.parent = record.parent, .recompute_seconds = record.recompute_seconds},
        TimePoint(), &replaced);
    ReleaseParts(replaced, &lock.released);
    if (!block) return true;
    ns->index.Insert(record.key, block->parent, block->parts, disk_.kind(),
                     block->recompute_seconds, last_use);
    ++result_.blocks;
    return true;
  }

  void Finish(NamespaceState& ns) {
    NamespaceLock lock(ns, context_.tiers);
    std::vector<PartPlace> incomplete;
    ns.pending.Expire(context_.clock->Now(), /*all=*/true, &incomplete);
    ReleaseParts(incomplete, &lock.released);
    ns.index.Compact();
  }

  void ReleaseParts(const std::vector<PartPlace>& parts, ReleaseList* released) {
    for (const PartPlace& part : parts) {
      released->push_back({disk_.kind(), part.In(disk_.kind())});
      ++result_.released;
    }
  }

  NodeContext& context_;
  PersistentTier& disk_;
  absl::flat_hash_map<Fingerprint, Unmet> unmet_;
  std::map<std::string, Status> newer_;  // Records of namespaces that are none of this version.
  Status refused_;
  bool over_budget_ = false;
  RecoveryResult result_;
};

}  // namespace

Result<RecoveryResult> RecoverFromDisk(NodeContext& context) { return Recovery(context).Run(); }

}  // namespace cairn::cache
