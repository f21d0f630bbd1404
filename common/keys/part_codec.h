#pragma once
// How the parts of a namespace are stored.

#include <memory>
#include <vector>

#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "common/keys/checked_namespace.h"
#include "kernels/codecs/codec.h"

namespace cairn {

struct PartCodecs {
  // How writers store parts, and how these lie in the host tier.
  format::Codec pushed = format::Codec::kRaw;
  // How parts lie on disk, and in the host tier after they were read back from disk. Only a ladder
  // has another codec here.
  format::Codec on_disk = format::Codec::kRaw;
  // Parts hold selected rows: format::PartHeader::selected.
  bool selected = false;
  // The codecs, one for each rung of the recipe, never null. The first is that of `pushed`, the
  // last that of `on_disk`. Empty in an opaque layout, whose bytes nobody interprets.
  std::vector<std::shared_ptr<const codecs::Codec>> rungs = {};
  bool IsLadder() const { return pushed != on_disk; }
};

// kOpaque in an opaque layout, otherwise the codecs of the recipe, each of which can store every
// layer of the layout.
//
// UNIMPLEMENTED: a ladder with a rung for devices, because the device tier only copies what the
// host tier has. INVALID_ARGUMENT, which names the field 'recipe' and what it cannot store:
//   opaque layout     a recipe other than raw, because nobody interprets its bytes
//   ladder            rungs with the same codec, because the header of a part could not say which
//                     rung it has
//   other than raw    planes other than keys and values of f16, or of a shape that a codec refuses
//   selection         keys and values without a head for each KV head
Result<PartCodecs> PartCodecsOf(const CheckedNamespace& ns);

}  // namespace cairn
