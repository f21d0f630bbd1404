#pragma once
// 4 bits a number, with a scale and a minimum for each group.
//
// Source: Liu et al., "KIVI", 2024: keys by channel, values by token.
//
//   group  tokens (keys) or dimensions (values) that share a scale
//   sink   1: the sequence's first token stays in half precision

#include <memory>

#include "kernels/codecs/card.h"
#include "kernels/codecs/int4/int4_plane.h"

namespace cairn::codecs {

struct Int4 {
  static CodecInfo Info() {
    return {
        "int4",
        3,
        true,
        "4 bits, keys by channel, values by token (KIVI)",
        {{"group", "tokens (keys) or dimensions (values) that share a scale", 64, {32, 64, 128}},
         SinkParameter(1)}};
  }
  static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k) {
    return Planewise("int4", k, std::make_unique<Int4ChannelPlane>(k, v["group"]),
                     std::make_unique<Int4TokenPlane>(k, v["group"]), v["sink"]);
  }
};

}  // namespace cairn::codecs
