#pragma once
// How the parts of a namespace are stored.

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn {

struct PartCodecs {
  // How writers store parts, and how these lie in the host tier.
  format::Codec pushed = format::Codec::kRaw;
  // How parts lie on disk, and in the host tier after they were read back from disk. Only a ladder
  // has another codec here.
  format::Codec on_disk = format::Codec::kRaw;
  // Parts hold selected rows: format::PartHeader::selected.
  bool selected = false;
  bool IsLadder() const { return pushed != on_disk; }
};

// kOpaque in an opaque layout, otherwise the codecs of the recipe. REQUIRES: Validate(spec).ok().
// UNIMPLEMENTED: a ladder with a rung for devices, because there is no such tier. INVALID_ARGUMENT:
// a recipe other than raw in an opaque layout, because nobody interprets its bytes; a ladder whose
// rungs have the same codec, because the header of a part could not say which rung it has; a
// selection in a layout other than keys and values of f16 with a head for each KV head.
Result<PartCodecs> PartCodecsOf(const NamespaceSpec& spec);

}  // namespace cairn
