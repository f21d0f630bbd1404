#pragma once
// Half precision as it is: the only codec that loses nothing.

#include <memory>

#include "kernels/codecs/card.h"
#include "kernels/codecs/raw/raw_plane.h"

namespace cairn::codecs {

struct Raw {
  static CodecInfo Info() { return {"raw", 0, false, "half precision as it is", {}}; }
  static std::unique_ptr<Codec> Make(const Values&, const kernels::CodecKernels& k) {
    return Planewise("raw", k, std::make_unique<RawPlane>(), std::make_unique<RawPlane>(), 0);
  }
};

}  // namespace cairn::codecs
