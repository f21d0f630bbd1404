#include "services/cache/engine/recovery.h"

#include "absl/container/flat_hash_map.h"
#include "common/log/log.h"
#include "services/cache/block/record.h"

namespace cairn::cache {
namespace {

// The budget is looked at once in so many blocks.
constexpr uint64_t kCheckBudgetEvery = 1024;

// Each record is looked at once and then forgotten: beside the index that it makes, recovery needs
// no memory that grows with what is on disk. A node that ran at its limit starts again at it.
class Recovery {
 public:
  explicit Recovery(NodeContext& context) : context_(context), disk_(*context.tiers.persistent) {}

  Result<RecoveryResult> Run() {
    CAIRN_RETURN_IF_ERROR(OpenNamespaces());
    CAIRN_RETURN_IF_ERROR(disk_.Recover([this](const Extent& extent, std::string_view bytes) {
      const auto record = DecodeRecord(bytes);
      if (record.ok()) dropped_.erase(record->fingerprint);
      if (record.ok() && record->bytes == extent.length && Show(extent, *record)) return true;
      ++result_.released;
      return false;
    }));
    // Nothing of these is left that could come back.
    for (const auto& [fingerprint, name] : dropped_) CAIRN_RETURN_IF_ERROR(disk_.DeleteMeta(name));
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) Finish(*ns);
    return result_;
  }

 private:
  Status OpenNamespaces() {
    return disk_.ListMeta([&](std::string_view name, std::string_view value) {
      if (!name.starts_with(kNamespaceMetaPrefix)) return;
      auto record = DecodeNamespaceRecord(value);
      if (!record.ok()) {
        log::Warn("namespace_record_unreadable",
                  {{"name", std::string(name)}, {"error", Message(record.status())}});
        return;
      }
      const auto stored = StoredNamespace::Of(std::move(record->spec));
      const Fingerprint& fingerprint = stored->fingerprint;
      context_.registry.RememberGeneration(fingerprint, record->generation);
      if (record->dropped) {
        dropped_.emplace(fingerprint, name);
        return;
      }
      const auto opened = context_.registry.Open(fingerprint, [&](uint64_t generation) {
        auto ns =
            std::make_shared<NamespaceState>(stored, generation, &context_.policy, context_.seed);
        ns->persisted.store(true);
        return ns;
      });
      if (!opened.ok()) {
        log::Warn("namespace_not_recovered", {{"error", Message(opened.status())}});
        return;
      }
      ++result_.namespaces;
      if (const Status& unreadable = stored->storage.status(); !unreadable.ok()) {
        ++result_.unreadable_namespaces;
        log::Warn("namespace_unreadable", {{"fingerprint", fingerprint.Hex()},
                                           {"tenant", stored->spec.tenant},
                                           {"recipe", stored->spec.recipe},
                                           {"error", Message(unreadable)}});
      }
    });
  }

  // False when the extent is of no use.
  bool Show(const Extent& extent, const BlockRecord& record) {
    const NamespacePtr ns = context_.registry.Find(record.fingerprint);
    if (ns == nullptr || ns->generation != record.generation || ns->whole != record.grid)
      return false;
    if (result_.blocks % kCheckBudgetEvery == 0) {
      over_budget_ = context_.IndexBytes() >= context_.options.max_index_bytes;
    }
    if (over_budget_) return false;
    PartPlace place{.rect = record.rect};
    place.Set(disk_.kind(), extent);
    NamespaceLock lock(*ns, context_.tiers);
    if (ns->index.FindAlive(record.key)) return false;  // Written twice.
    if (ns->pending.Claim(record.key, record.rect) != PartFit::kFree) return false;
    const auto block =
        ns->pending.Commit(record.key, place, record.parent, record.recompute_seconds, TimePoint());
    if (!block) return true;
    ns->index.Insert(record.key, block->parent, block->parts, disk_.kind(),
                     block->recompute_seconds, 0);
    ++result_.blocks;
    return true;
  }

  void Finish(NamespaceState& ns) {
    NamespaceLock lock(ns, context_.tiers);
    std::vector<PartPlace> incomplete;
    ns.pending.Expire(context_.clock->Now(), /*all=*/true, &incomplete);
    for (const PartPlace& part : incomplete) {
      lock.released.push_back({disk_.kind(), part.In(disk_.kind())});
      ++result_.released;
    }
    ns.index.Compact();
  }

  NodeContext& context_;
  PersistentTier& disk_;
  // Dropped namespaces of which no record was seen yet, and the names of their own records.
  absl::flat_hash_map<Fingerprint, std::string> dropped_;
  bool over_budget_ = false;
  RecoveryResult result_;
};

}  // namespace

Result<RecoveryResult> RecoverFromDisk(NodeContext& context) { return Recovery(context).Run(); }

}  // namespace cairn::cache
