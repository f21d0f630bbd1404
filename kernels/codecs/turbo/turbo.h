#pragma once
// Rotated tokens, stored with Lloyd-Max levels.
//
// Source: Zandieh et al., "TurboQuant", 2025, section 3.1; the gain minimises the squared error.
//
//   bits  bits a number
//   v     bits a number of values, where they differ from keys
//   sink  1: the sequence's first token stays in half precision

#include <memory>

#include "kernels/codecs/card.h"
#include "kernels/codecs/turbo/turbo_plane.h"

namespace cairn::codecs {

struct Turbo {
  static CodecInfo Info() {
    return {"turbo",
            4,
            true,
            "rotated, Lloyd-Max levels (TurboQuant)",
            {{"bits", "bits a number", 4, {2, 3, 4}},
             {"v", "bits a number of values, where they differ from keys", 4, {2, 3, 4}, 0},
             SinkParameter(1)}};
  }
  static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k) {
    return Planewise("turbo", k, std::make_unique<TurboPlane>(k, static_cast<int>(v["bits"])),
                     std::make_unique<TurboPlane>(k, static_cast<int>(v["v"])), v["sink"]);
  }
};

}  // namespace cairn::codecs
