#pragma once
// How the slices of a codec look to the operations on many slices (codec/slice_kernels.h).

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::codecs {

// Codings, their parameters and the sink. Heads, dimensions and strides are the caller's to set.
// `values`: one for each of the codec's parameters, as MakeCodec takes them. nullopt: these
// operations do not have the codec.
std::optional<kernels::SliceForm> SliceFormOf(std::string_view codec,
                                              std::span<const int64_t> values);

}  // namespace cairn::codecs
