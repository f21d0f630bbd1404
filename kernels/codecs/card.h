#pragma once
// A codec's card: its name, id and parameters, and how it is made of their values. Each folder here
// has one (int8/int8.h):
//
//   struct Int8 {
//     static CodecInfo Info();
//     static std::unique_ptr<Codec> Make(const Values& v, const kernels::CodecKernels& k);
//   };
//
// all.h lists the cards, and the registry reads that list. Make gets checked values only.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/codec.h"
#include "kernels/codecs/planewise_codec.h"

namespace cairn::codecs {

struct ParameterInfo {
  std::string_view name;
  std::string_view meaning;
  int64_t fallback = 0;          // The value when the recipe does not give one.
  std::vector<int64_t> allowed;  // Ascending.
  // Index of the parameter whose value this one takes when it is not given. -1: it takes
  // `fallback`.
  int same_as = -1;
};

struct CodecInfo {
  std::string_view name;
  uint16_t id = 0;  // The value of format::Codec in a part's header.
  bool lossy = false;
  std::string_view meaning;
  std::vector<ParameterInfo> parameters;  // In canonical order.
};

// A parameter of most codecs. Codecs that have it have it as the last one.
inline ParameterInfo SinkParameter(int64_t fallback) {
  return {"sink", "tokens at the start of a sequence kept in half precision", fallback, {0, 1}};
}

// One value for each parameter of a codec. Immutable: any thread may use it.
class Values {
 public:
  // Both must outlive this. REQUIRES: as many values as parameters.
  Values(const CodecInfo& info, std::span<const int64_t> values) : info_(info), values_(values) {}

  // REQUIRES: the codec has the parameter.
  int64_t operator[](std::string_view name) const {
    size_t i = 0;
    while (info_.parameters[i].name != name) ++i;
    return values_[i];
  }

 private:
  const CodecInfo& info_;
  std::span<const int64_t> values_;
};

// A codec of two planes. `kernels` must outlive it.
inline std::unique_ptr<Codec> Planewise(std::string_view name, const kernels::CodecKernels& kernels,
                                        std::unique_ptr<PlaneCodec> keys,
                                        std::unique_ptr<PlaneCodec> values, int64_t sink) {
  return std::make_unique<PlanewiseCodec>(std::string(name), kernels, std::move(keys),
                                          std::move(values), sink);
}

}  // namespace cairn::codecs
