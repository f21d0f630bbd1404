#include "services/cache/engine/recovery.h"

#include "absl/container/flat_hash_set.h"
#include "common/log/log.h"
#include "services/cache/block/record.h"

namespace cairn::cache {
namespace {

// The budget is looked at once in so many blocks.
constexpr uint64_t kCheckBudgetEvery = 1024;

struct Found {
  Extent extent;
  BlockRecord record;
};

class Recovery {
 public:
  explicit Recovery(NodeContext& context) : context_(context), disk_(*context.tiers.persistent) {}

  Result<RecoveryResult> Run() {
    CAIRN_RETURN_IF_ERROR(disk_.Recover([this](const Extent& extent, std::string_view bytes) {
      auto record = DecodeRecord(bytes);
      if (!record.ok() || record->bytes != extent.length) {
        ++result_.released;
        return false;
      }
      mentioned_.insert(record->fingerprint);
      found_.push_back({extent, *std::move(record)});
      return true;
    }));
    CAIRN_RETURN_IF_ERROR(OpenNamespaces());
    for (const Found& found : found_) {
      if (!Show(found)) Release(found.extent);
    }
    found_.clear();
    found_.shrink_to_fit();
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) Finish(*ns);
    return result_;
  }

 private:
  Status OpenNamespaces() {
    std::vector<std::string> forgotten;
    CAIRN_RETURN_IF_ERROR(disk_.ListMeta([&](std::string_view name, std::string_view value) {
      if (!name.starts_with(kNamespaceMetaPrefix)) return;
      auto record = DecodeNamespaceRecord(value);
      if (!record.ok()) {
        log::Warn("namespace_record_unreadable",
                  {{"name", std::string(name)}, {"error", Message(record.status())}});
        return;
      }
      const auto stored = StoredNamespace::Of(std::move(record->spec));
      const Fingerprint& fingerprint = stored->fingerprint;
      if (record->dropped && !mentioned_.contains(fingerprint)) {
        forgotten.emplace_back(name);  // Nothing of it is left that could come back.
        return;
      }
      context_.registry.RememberGeneration(fingerprint, record->generation);
      if (record->dropped) return;
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
    }));
    for (const std::string& name : forgotten) CAIRN_RETURN_IF_ERROR(disk_.DeleteMeta(name));
    return OkStatus();
  }

  // False when the extent is of no use.
  bool Show(const Found& found) {
    const BlockRecord& record = found.record;
    const NamespacePtr ns = context_.registry.Find(record.fingerprint);
    if (ns == nullptr || ns->generation != record.generation || ns->whole != record.grid)
      return false;
    if (result_.blocks % kCheckBudgetEvery == 0) {
      over_budget_ = context_.IndexBytes() >= context_.options.max_index_bytes;
    }
    if (over_budget_) return false;
    PartPlace place{.rect = record.rect};
    place.Set(disk_.kind(), found.extent);
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
                     block->recompute_seconds, 0);
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

  void Release(const Extent& extent) {
    disk_.Release(extent);
    ++result_.released;
  }

  NodeContext& context_;
  PersistentTier& disk_;
  std::vector<Found> found_;
  absl::flat_hash_set<Digest> mentioned_;
  bool over_budget_ = false;
  RecoveryResult result_;
};

}  // namespace

Result<RecoveryResult> RecoverFromDisk(NodeContext& context) { return Recovery(context).Run(); }

}  // namespace cairn::cache
