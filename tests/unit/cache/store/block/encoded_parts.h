#pragma once
// Parts of random numbers in any codec, for tests of ladders.

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "common/recipe/recipe.h"
#include "kernels/codecs/codec.h"

namespace cairn::cache::testing {

// 3 layers, of which the second has no KV, 2 heads of 64 dimensions, blocks of 32 tokens.
inline NamespaceSpec EncodedSpec(std::string recipe) {
  NamespaceSpec spec;
  spec.model = "model";
  spec.revision = "1";
  spec.numerics = "f32";
  spec.recipe = std::move(recipe);
  spec.layout.block_tokens = 32;
  const LayerGroup kv{.count = 1, .planes = {{"k", 2, 64, DType::kF16}, {"v", 2, 64, DType::kF16}}};
  spec.layout.form = NativeLayout{.groups = {kv, {.count = 1, .planes = {}}, kv}, .kv_heads = 2};
  return spec;
}

// The planes of one layer of a rectangle of a block with these numbers: in half precision, of all
// heads, keys and then values.
struct EncodedPlanes {
  EncodedPlanes(const format::PartRect& rect, const std::vector<uint16_t>& layer) {
    const int64_t tokens = 32, dim = 64;
    const int64_t heads = rect.head_end - rect.head_begin;
    k = {.data = layer.data() + rect.head_begin * tokens * dim,
         .heads = heads,
         .dim = dim,
         .head_stride = tokens * dim,
         .token_stride = dim};
    v = k;
    v.data += 2 * tokens * dim;
  }
  codecs::Plane k, v;
};

// Halves between 0.25 and 2 of either sign, of one layer.
inline std::vector<uint16_t> RandomLayer(uint64_t seed, uint32_t layer) {
  std::mt19937_64 rng(seed * 31 + layer);
  std::vector<uint16_t> numbers(2 * 2 * 32 * 64);
  for (uint16_t& n : numbers) {
    const uint64_t r = rng();
    n = static_cast<uint16_t>(0x3400 + r % 0xc00 + (r >> 40) % 2 * 0x8000);
  }
  return numbers;
}

// The bytes that a codec of the recipe grammar makes of one layer.
inline std::vector<std::byte> EncodeLayer(const codecs::Codec& codec, const EncodedPlanes& planes,
                                          uint32_t layer, bool at_start) {
  const codecs::SlicePlace place{layer, at_start ? 0 : 640};
  const codecs::SliceShape shape = codecs::ShapeOf(planes.k, planes.v, 32);
  std::vector<std::byte> out(codec.MaxEncodedBytes(shape, place));
  std::vector<std::byte> scratch(codec.ScratchBytes(shape));
  const auto result = codec.Encode(planes.k, planes.v, 32, place, out, scratch);
  CAIRN_CHECK(result.status == codecs::CodecStatus::kOk);
  out.resize(result.bytes);
  return out;
}

// The sealed part of these slices; empty ones are of layers without KV.
inline std::vector<std::byte> SealSlices(const std::vector<std::vector<std::byte>>& slices,
                                         format::Codec id, const format::PartRect& rect) {
  std::vector<uint64_t> lengths;
  for (const auto& slice : slices) lengths.push_back(slice.size());
  std::vector<std::byte> part(format::PartBytes(lengths));
  size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  for (const auto& slice : slices) {
    if (!slice.empty()) std::memcpy(part.data() + at, slice.data(), slice.size());
    at += slice.size();
  }
  format::SealPart(part, id, rect, 32, lengths);
  return part;
}

// A part of block `seed`, encoded by the codecs of a chain one after the other: {"int8"} is how a
// writer pushes it, {"int8", "turbo:bits=4"} what a ladder makes of that.
inline std::vector<std::byte> EncodedPart(const std::vector<std::string>& chain, uint64_t seed,
                                          const format::PartRect& rect, bool at_start) {
  std::vector<std::vector<std::byte>> slices;
  std::vector<RecipeCodec> named;
  for (const std::string& codec : chain) {
    named.push_back(ParseRecipe(codec).value().rungs.front().codec);
  }
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    std::vector<std::byte>& slice = slices.emplace_back();
    if (layer == 1) continue;
    std::vector<uint16_t> numbers = RandomLayer(seed, layer);
    for (const RecipeCodec& link : named) {
      const auto codec = link.Make();
      const EncodedPlanes planes(rect, numbers);
      slice = EncodeLayer(*codec, planes, layer, at_start);
      const auto mutable_of = [](const codecs::Plane& p) {
        return codecs::MutablePlane{const_cast<uint16_t*>(p.data), p.heads, p.dim, p.head_stride,
                                    p.token_stride};
      };
      std::vector<std::byte> scratch(codec->ScratchBytes(codecs::ShapeOf(planes.k, planes.v, 32)));
      CAIRN_CHECK(codec->Decode(slice, mutable_of(planes.k), mutable_of(planes.v), 32,
                                {layer, at_start ? 0 : 640}, scratch) == codecs::CodecStatus::kOk);
    }
  }
  return SealSlices(slices, static_cast<format::Codec>(named.back().info->id), rect);
}

}  // namespace cairn::cache::testing
