#pragma once
// fp8 e4m3 with one scale per token.
//
//   sink  1: the sequence's first token stays in half precision

#include <memory>

#include "kernels/codecs/card.h"
#include "kernels/codecs/fp8/fp8_plane.h"

namespace cairn::codecs {

struct Fp8 {
  static CodecInfo Info() { return {"fp8", 5, true, "e4m3, scale per token", {SinkParameter(0)}}; }
  static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k) {
    return Planewise("fp8", k, std::make_unique<Fp8Plane>(k), std::make_unique<Fp8Plane>(k),
                     v["sink"]);
  }
};

}  // namespace cairn::codecs
