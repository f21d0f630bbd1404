#pragma once
// How the parts of a namespace are stored.

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn {

struct PartCodecs {
  // As writers bring parts, and as they lie in the host tier.
  format::Codec pushed = format::Codec::kRaw;
  // As they lie on disk, and in the host tier once they come back from there. Differs in a ladder.
  format::Codec on_disk = format::Codec::kRaw;
  // Parts hold selected rows: format::PartHeader::selected.
  bool selected = false;
  bool IsLadder() const { return pushed != on_disk; }
};

// kOpaque in an opaque layout, else the codecs of the recipe. REQUIRES: Validate(spec).ok().
// UNIMPLEMENTED for a ladder with a rung for devices: there is no such tier. INVALID_ARGUMENT for a
// recipe other than raw in an opaque layout, whose bytes nobody interprets, and for a ladder whose
// rungs have one codec: a part's header could not say which of them it is; and for a selection in
// another layout than keys and values of f16 with a head for each KV head.
Result<PartCodecs> PartCodecsOf(const NamespaceSpec& spec);

}  // namespace cairn
