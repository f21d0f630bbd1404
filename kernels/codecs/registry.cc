#include "kernels/codecs/registry.h"

#include <algorithm>

#include "kernels/codecs/cachegen/cachegen_codec.h"
#include "kernels/codecs/fp8/fp8_plane.h"
#include "kernels/codecs/int4/int4_plane.h"
#include "kernels/codecs/int8/int8_plane.h"
#include "kernels/codecs/mixed/mixed_plane.h"
#include "kernels/codecs/planewise_codec.h"
#include "kernels/codecs/raw/raw_plane.h"
#include "kernels/codecs/turbo/turbo_plane.h"

namespace cairn::codecs {
namespace {

using kernels::CodecKernels;

const ParameterInfo kSink0 = {
    "sink", "tokens at the start of a sequence kept in half precision", 0, {0, 1}};
const ParameterInfo kSink1 = {kSink0.name, kSink0.meaning, 1, kSink0.allowed};

const std::vector<int64_t> kSteps = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64};

std::unique_ptr<Codec> Make(std::string_view name, std::span<const int64_t> values,
                            const CodecKernels& kernels) {
  const CodecInfo* info = FindCodec(name);
  if (info == nullptr || values.size() != info->parameters.size()) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& allowed = info->parameters[i].allowed;
    if (std::find(allowed.begin(), allowed.end(), values[i]) == allowed.end()) return nullptr;
  }
  const auto planes = [&](std::unique_ptr<PlaneCodec> keys,
                          std::unique_ptr<PlaneCodec> values_codec, int64_t sink) {
    return std::make_unique<PlanewiseCodec>(std::string(name), kernels, std::move(keys),
                                            std::move(values_codec), sink);
  };
  if (name == "raw") {
    return planes(std::make_unique<RawPlane>(), std::make_unique<RawPlane>(), 0);
  }
  if (name == "int8") {
    return planes(std::make_unique<Int8Plane>(kernels, values[0]),
                  std::make_unique<Int8Plane>(kernels, values[0]), values[1]);
  }
  if (name == "int4") {
    return planes(std::make_unique<Int4ChannelPlane>(kernels, values[0]),
                  std::make_unique<Int4TokenPlane>(kernels, values[0]), values[1]);
  }
  if (name == "turbo") {
    return planes(std::make_unique<TurboPlane>(kernels, static_cast<int>(values[0])),
                  std::make_unique<TurboPlane>(kernels, static_cast<int>(values[1])), values[2]);
  }
  if (name == "fp8") {
    return planes(std::make_unique<Fp8Plane>(kernels), std::make_unique<Fp8Plane>(kernels),
                  values[0]);
  }
  if (name == "mixed") {
    return planes(std::make_unique<MixedPlane>(kernels, values[0], values[1]),
                  std::make_unique<Int4TokenPlane>(kernels, values[0]), values[2]);
  }
  if (name == "cachegen") {
    return std::make_unique<CacheGenCodec>(kernels, values[0], values[1], values[2]);
  }
  return nullptr;
}

}  // namespace

const std::vector<CodecInfo>& AllCodecs() {
  static const std::vector<CodecInfo> all = {
      {"raw", 0, false, "half precision as it is", {}},
      {"int8",
       2,
       true,
       "8 bits, scale per token and group of dimensions",
       {{"group", "dimensions that share a scale", 64, {16, 32, 64, 128}}, kSink0}},
      {"int4",
       3,
       true,
       "4 bits, keys by channel, values by token (KIVI)",
       {{"group", "tokens (keys) or dimensions (values) that share a scale", 64, {32, 64, 128}},
        kSink1}},
      {"turbo",
       4,
       true,
       "rotated, Lloyd-Max levels (TurboQuant)",
       {{"bits", "bits a number", 4, {2, 3, 4}},
        {"v", "bits a number of values, where they differ from keys", 4, {2, 3, 4}, 0},
        kSink1}},
      {"fp8", 5, true, "e4m3, scale per token", {kSink0}},
      {"mixed",
       6,
       true,
       "4 bits by token, the largest channels of keys in half precision",
       {{"group", "dimensions that share a scale", 64, {32, 64, 128}},
        {"outliers", "channels of keys kept in half precision", 2, {1, 2, 4, 8}},
        kSink1}},
      {"cachegen",
       7,
       true,
       "multiples of a step, against channel means, entropy-coded",
       {{"k", "step of keys in 64ths of a head's rms", 10, kSteps},
        {"v", "step of values in 64ths of a head's rms", 10, kSteps},
        kSink1}},
  };
  return all;
}

const CodecInfo* FindCodec(std::string_view name) {
  for (const CodecInfo& info : AllCodecs()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

std::unique_ptr<Codec> MakeCodec(std::string_view name, std::span<const int64_t> values,
                                 kernels::Isa isa) {
  return Make(name, values, kernels::CpuCodecKernels(isa));
}

std::unique_ptr<Codec> MakeReferenceCodec(std::string_view name, std::span<const int64_t> values) {
  return Make(name, values, kernels::ReferenceCodecKernels());
}

}  // namespace cairn::codecs
