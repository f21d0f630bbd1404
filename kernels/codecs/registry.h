#pragma once
// Which codecs exist, their parameters and legal values; and how one is made. The recipe grammar
// (services/common/recipe) reads its names, defaults and ranges from here.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codecs/codec.h"
#include "kernels/include/cairn/kernels/isa.h"

namespace cairn::codecs {

struct ParameterInfo {
  std::string_view name;
  std::string_view meaning;
  int64_t fallback = 0;          // Where the recipe does not give it.
  std::vector<int64_t> allowed;  // Ascending.
  // Index of the parameter whose value this one has where it is not given; -1: `fallback` holds.
  int same_as = -1;
};

struct CodecInfo {
  std::string_view name;
  uint16_t id = 0;  // The value of format::Codec in a part's header.
  bool lossy = false;
  std::string_view meaning;
  std::vector<ParameterInfo> parameters;  // In canonical order.
};

// All codecs, in the order of their ids.
const std::vector<CodecInfo>& AllCodecs();
// Null when there is none of this name.
const CodecInfo* FindCodec(std::string_view name);

// `values`: one for each of the codec's parameters, in their order. Null when the name is unknown
// or a value is not allowed: check these before, with AllCodecs. The kernels are those of `isa`.
std::unique_ptr<Codec> MakeCodec(std::string_view name, std::span<const int64_t> values,
                                 kernels::Isa isa = kernels::BestIsa());
// With the definition of every kernel, for tests.
std::unique_ptr<Codec> MakeReferenceCodec(std::string_view name, std::span<const int64_t> values);

}  // namespace cairn::codecs
