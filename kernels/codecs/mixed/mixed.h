#pragma once
// int4 by token, with the largest channels of keys in half precision.
//
//   group     dimensions that share a scale
//   outliers  channels of keys kept in half precision
//   sink      1: the sequence's first token stays in half precision

#include <memory>

#include "kernels/codecs/card.h"
#include "kernels/codecs/int4/int4_plane.h"
#include "kernels/codecs/mixed/mixed_plane.h"

namespace cairn::codecs {

struct Mixed {
  static CodecInfo Info() {
    return {"mixed",
            6,
            true,
            "4 bits by token, the largest channels of keys in half precision",
            {{"group", "dimensions that share a scale", 64, {32, 64, 128}},
             {"outliers", "channels of keys kept in half precision", 2, {1, 2, 4, 8}},
             SinkParameter(1)}};
  }
  static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k) {
    return Planewise("mixed", k, std::make_unique<MixedPlane>(k, v["group"], v["outliers"]),
                     std::make_unique<Int4TokenPlane>(k, v["group"]), v["sink"]);
  }
};

}  // namespace cairn::codecs
