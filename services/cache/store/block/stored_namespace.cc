#include "services/cache/store/block/stored_namespace.h"

#include <utility>

#include "common/keys/part_codec.h"

namespace cairn::cache {
namespace {

Result<PartStorage> StorageOf(const Layout& layout, Result<CheckedNamespace> checked) {
  if (!checked.ok()) return checked.status();
  CAIRN_ASSIGN_OR_RETURN(const PartCodecs codecs, PartCodecsOf(*checked));
  CAIRN_RETURN_IF_ERROR(Recoder::Check(layout, codecs));
  const auto sizes = std::make_shared<const LayerSizes>(layout);
  const PartForm pushed{layout, codecs.pushed, std::nullopt, codecs.selected, sizes};
  // Memory holds parts as writers brought them, and those that came back from disk.
  const PartForm memory{layout, codecs.pushed, codecs.on_disk, codecs.selected, sizes};
  const PartForm disk{layout, codecs.on_disk, std::nullopt, codecs.selected, sizes};
  const FieldHashes fields = HashFields(*checked);
  return PartStorage{.recipe = std::move(checked->recipe),
                     .fields = fields,
                     .pushed = pushed,
                     .in_tier = {{memory, disk, memory}},  // By the numbers of TierKind.
                     .recoder = Recoder::Create(layout, codecs)};
}

size_t BytesOf(const std::string& text) { return text.capacity() + 1; }

size_t BytesOf(const Layout& layout) {
  const auto* native = std::get_if<NativeLayout>(&layout.form);
  if (native == nullptr) {
    const auto& opaque = std::get<OpaqueLayout>(layout.form);
    size_t bytes = BytesOf(opaque.description) + opaque.pools.capacity() * sizeof(Pool);
    for (const Pool& pool : opaque.pools) bytes += BytesOf(pool.name);
    return bytes;
  }
  size_t bytes = native->groups.capacity() * sizeof(LayerGroup);
  for (const LayerGroup& group : native->groups) {
    bytes += group.planes.capacity() * sizeof(Plane);
    for (const Plane& plane : group.planes) bytes += BytesOf(plane.name);
  }
  return bytes;
}

// Neighbouring groups of equal layers mean the same as one group. Work on a layout takes time by
// its groups.
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

size_t StoredNamespace::MemoryBytes() const {
  const size_t layout = BytesOf(spec.layout);
  size_t bytes = sizeof(*this) + layout;
  for (const std::string* text : {&spec.tenant, &spec.salt, &spec.model, &spec.revision,
                                  &spec.recipe, &spec.numerics, &spec.key_scheme}) {
    bytes += BytesOf(*text);
  }
  // The parsed recipe, and the recoder's own copy of the layout.
  bytes += 2 * spec.recipe.size();
  if (storage.ok()) bytes += storage->pushed.sizes->MemoryBytes();
  if (storage.ok() && storage->recoder != nullptr) bytes += sizeof(Recoder) + layout;
  return bytes;
}

}  // namespace cairn::cache
