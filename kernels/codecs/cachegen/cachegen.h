#pragma once
// Multiples of a step, as differences from a channel's mean, entropy-coded.
//
// Stateless: any thread may use it.
//
// Source: Liu et al., "CacheGen", SIGCOMM 2024. Differences from the paper: cachegen_codec.h.
//
//   k, v  steps of keys and of values in 64ths of a head's root mean square
//   sink  1: the sequence's first token stays in half precision

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/codecs/cachegen/cachegen_codec.h"
#include "kernels/codecs/card.h"

namespace cairn::codecs {

class CacheGen {
 public:
  static CodecInfo Info() {
    return {"cachegen",
            7,
            true,
            "multiples of a step, against channel means, entropy-coded",
            {{"k", "step of keys in 64ths of a head's rms", 10, Steps()},
             {"v", "step of values in 64ths of a head's rms", 10, Steps()},
             SinkParameter(1)}};
  }
  static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k) {
    return std::make_unique<CacheGenCodec>(k, v["k"], v["v"], v["sink"]);
  }

 private:
  static std::vector<int64_t> Steps() {
    return {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64};
  }
};

}  // namespace cairn::codecs
