#pragma once
// Any bytes as an encoded slice: the decoder stays inside its buffers, says the same on every
// instruction set, and what it accepts is finite.
//
// First byte: bits 0 and 1 the shape, bit 2 the position (0 or 64), bit 3: as many bytes follow as
// a slice has, whatever the input's length, bits 4 to 7 the parameters. The rest is the slice.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/codecs/registry.h"

namespace cairn::codecs {

class DecoderFuzz {
 public:
  // `dim`: the smallest head that the codec codes: small slices are quickly tried.
  DecoderFuzz(std::string_view name, int64_t dim,
              const std::vector<std::vector<int64_t>>& parameters)
      : lossless_(name == "raw"),
        shapes_{
            {4, 1, dim, 1, dim}, {2, 2, dim, 1, 2 * dim}, {1, 1, 128, 0, 0}, {5, 1, dim, 1, dim}} {
    for (const auto& values : parameters) {
      best_.push_back(MakeCodec(name, values));
      portable_.push_back(
          MakeCodec(name, values, kernels::CpuCodecKernels(kernels::Isa::kPortable)));
      if (best_.back() == nullptr) std::abort();
    }
  }

  void Run(const uint8_t* data, size_t size) const {
    if (size == 0) return;
    const uint8_t choice = data[0];
    const SliceShape& shape = shapes_[choice & 3];
    const SlicePlace place{choice >> 4, choice & 4 ? 64 : 0};
    const size_t which = (choice >> 4) % best_.size();
    const Codec& codec = *best_[which];
    if (!codec.Supports(shape, place).empty()) std::abort();
    // Copies of exactly their size, for the sanitizer's red zones.
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    std::vector<std::byte> in(bytes + 1, bytes + size);
    if (choice & 8) in.resize(codec.MaxEncodedBytes(shape, place));

    const auto numbers = static_cast<size_t>(shape.HalfBytes() / 2);
    std::vector<uint16_t> got(numbers), want(numbers);
    const CodecStatus status = Decode(codec, in, shape, place, &got);
    if (status != Decode(*portable_[which], in, shape, place, &want)) std::abort();
    if (status != CodecStatus::kOk) return;
    if (got != want) std::abort();
    for (const uint16_t x : got) {
      if (!lossless_ && (x & 0x7c00) == 0x7c00) std::abort();
    }
  }

 private:
  static CodecStatus Decode(const Codec& codec, const std::vector<std::byte>& in,
                            const SliceShape& s, const SlicePlace& place,
                            std::vector<uint16_t>* out) {
    std::vector<std::byte> scratch(codec.ScratchBytes(s));
    const MutablePlane k{out->data(), s.k_heads, s.k_dim, s.tokens * s.k_dim, s.k_dim};
    const MutablePlane v{out->data() + s.tokens * s.k_heads * s.k_dim, s.v_heads, s.v_dim,
                         s.tokens * s.v_dim, s.v_dim};
    return codec.Decode(in, k, v, s.tokens, place, scratch, false);
  }

  bool lossless_;
  SliceShape shapes_[4];
  std::vector<std::unique_ptr<Codec>> best_, portable_;
};

}  // namespace cairn::codecs
