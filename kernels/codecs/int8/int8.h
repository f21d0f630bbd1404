#pragma once
// 8 bits a number.
//
//   group  dimensions that share a scale
//   sink   1: the sequence's first token stays in half precision

#include <memory>

#include "kernels/codecs/card.h"
#include "kernels/codecs/int8/int8_plane.h"

namespace cairn::codecs {

struct Int8 {
  static CodecInfo Info() {
    return {"int8",
            2,
            true,
            "8 bits, scale per token and group of dimensions",
            {{"group", "dimensions that share a scale", 64, {16, 32, 64, 128}}, SinkParameter(0)}};
  }
  static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k) {
    return Planewise("int8", k, std::make_unique<Int8Plane>(k, v["group"]),
                     std::make_unique<Int8Plane>(k, v["group"]), v["sink"]);
  }
};

}  // namespace cairn::codecs
