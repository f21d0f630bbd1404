#include "services/cache/block/stored_namespace.h"

#include <utility>

#include "common/keys/part_codec.h"

namespace cairn::cache {
namespace {

Result<PartStorage> StorageOf(const Layout& layout, Result<CheckedNamespace> checked) {
  if (!checked.ok()) return checked.status();
  CAIRN_ASSIGN_OR_RETURN(const PartCodecs codecs, PartCodecsOf(*checked));
  const auto sizes = std::make_shared<const LayerSizes>(layout);
  const PartForm pushed{layout, codecs.pushed, std::nullopt, codecs.selected, sizes};
  // Memory holds parts as writers brought them, and those that came back from disk.
  const PartForm memory{layout, codecs.pushed, codecs.on_disk, codecs.selected, sizes};
  const PartForm disk{layout, codecs.on_disk, std::nullopt, codecs.selected, sizes};
  return PartStorage{.recipe = std::move(checked->recipe),
                     .pushed = pushed,
                     .in_tier = {{memory, disk, memory}},  // By the numbers of TierKind.
                     .recoder = Recoder::Create(layout, codecs)};
}

// Neighbouring groups of equal layers mean the same as one group. What is done with a layout takes
// time by its groups.
NamespaceSpec WithMergedGroups(NamespaceSpec spec) {
  if (auto* const native = std::get_if<NativeLayout>(&spec.layout.form)) {
    std::vector<LayerGroup> groups = std::exchange(native->groups, {});
    for (LayerGroup& group : groups) native->Append(std::move(group));
  }
  return spec;
}

}  // namespace

std::shared_ptr<const StoredNamespace> StoredNamespace::Of(NamespaceSpec spec) {
  Result<CheckedNamespace> checked = CheckNamespace(spec);
  return std::make_shared<const StoredNamespace>(std::move(spec), std::move(checked));
}

StoredNamespace::StoredNamespace(NamespaceSpec spec_in, Result<CheckedNamespace> checked)
    : spec(WithMergedGroups(std::move(spec_in))),
      fingerprint(checked.ok() ? checked->fingerprint : Fingerprint(spec)),
      storage(StorageOf(spec.layout, std::move(checked))) {}

}  // namespace cairn::cache
