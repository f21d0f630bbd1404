#pragma once
// How the parts of a namespace are stored.

#include "services/common/format/part.h"
#include "services/common/keys/namespace_spec.h"
#include "services/common/status/status.h"

namespace cairn {

// kOpaque in an opaque layout, else the codec of the recipe. UNIMPLEMENTED for a ladder: nothing
// encodes again when a block moves to another tier. INVALID_ARGUMENT for a recipe other than raw in
// an opaque layout, whose bytes nobody interprets. REQUIRES: Validate(spec).ok().
Result<format::Codec> PartCodec(const NamespaceSpec& spec);

}  // namespace cairn
