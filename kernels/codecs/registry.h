#pragma once
// Which codecs exist, their parameters and legal values (card.h); and how one is made. The recipe
// grammar (common/recipe) reads its names, defaults and ranges from here.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/card.h"
#include "kernels/codecs/codec.h"

namespace cairn::codecs {

// All codecs, in the order of their ids.
const std::vector<CodecInfo>& AllCodecs();
// Null when there is none of this name.
const CodecInfo* FindCodec(std::string_view name);

// `values`: one for each of the codec's parameters, in their order. Null: the name is unknown or a
// value is not allowed. Check these first, with AllCodecs. `kernels` must outlive the codec.
// REQUIRES: they are those of a backend that runs inline.
std::unique_ptr<Codec> MakeCodec(
    std::string_view name, std::span<const int64_t> values,
    const kernels::CodecKernels& kernels = kernels::CpuCodecKernels(kernels::BestIsa()));

}  // namespace cairn::codecs
