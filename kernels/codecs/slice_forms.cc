#include "kernels/codecs/slice_forms.h"

#include "kernels/codecs/registry.h"

namespace cairn::codecs {

using kernels::HeadCoding;
using kernels::SliceForm;

std::optional<SliceForm> SliceFormOf(std::string_view codec, std::span<const int64_t> values) {
  const CodecInfo* const info = FindCodec(codec);
  if (info == nullptr || values.size() != info->parameters.size()) return std::nullopt;
  const Values v(*info, values);
  SliceForm form;
  const auto of = [&](HeadCoding k, std::string_view k_parameter, HeadCoding values_coding,
                      std::string_view v_parameter, bool has_sink = true) {
    form.k.coding = k;
    form.v.coding = values_coding;
    if (!k_parameter.empty()) form.k.parameter = static_cast<int32_t>(v[k_parameter]);
    if (!v_parameter.empty()) form.v.parameter = static_cast<int32_t>(v[v_parameter]);
    if (has_sink) form.sink = static_cast<int32_t>(v["sink"]);
    return form;
  };
  if (codec == "raw") return of(HeadCoding::kRaw, "", HeadCoding::kRaw, "", /*has_sink=*/false);
  if (codec == "int8") return of(HeadCoding::kInt8, "group", HeadCoding::kInt8, "group");
  if (codec == "fp8") return of(HeadCoding::kFp8, "", HeadCoding::kFp8, "");
  if (codec == "turbo") return of(HeadCoding::kTurbo, "bits", HeadCoding::kTurbo, "v");
  if (codec == "cachegen") return of(HeadCoding::kCacheGen, "k", HeadCoding::kCacheGen, "v");
  if (codec == "int4") {
    return of(HeadCoding::kInt4Channel, "group", HeadCoding::kInt4Token, "group");
  }
  if (codec == "mixed") {
    form.k.outliers = static_cast<int32_t>(v["outliers"]);
    return of(HeadCoding::kMixed, "group", HeadCoding::kInt4Token, "group");
  }
  return std::nullopt;
}

}  // namespace cairn::codecs
