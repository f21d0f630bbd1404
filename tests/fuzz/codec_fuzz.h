#pragma once
// Any bytes as an encoded slice: the decoder stays inside its buffers, what it accepts is finite,
// and every instruction set of this machine gives the verdict and the numbers of the reference.
//
// First byte: bits 0 and 1 the shape, bit 2 the position (0 or 64), bit 3: as many bytes follow as
// a slice has, whatever the input's length, bits 4 to 7 the parameters. The rest is the slice.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/codecs/registry.h"
#include "tests/fuzz/input.h"

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
      reference_.push_back(MakeCodec(name, values, kernels::ReferenceCodecKernels()));
      fuzz::Expect(reference_.back() != nullptr);
    }
    for (const auto isa : {kernels::Isa::kPortable, kernels::Isa::kNeon, kernels::Isa::kAvx2,
                           kernels::Isa::kAvx512}) {
      if (!kernels::Supports(isa)) continue;
      for (const auto& values : parameters) {
        fast_.push_back(MakeCodec(name, values, kernels::CpuCodecKernels(isa)));
      }
    }
  }

  void Run(const uint8_t* data, size_t size) const {
    if (size == 0) return;
    fuzz::Input input(data, size);
    const uint8_t choice = input.U8();
    const SliceShape& shape = shapes_[choice & 3];
    const SlicePlace place{choice >> 4, choice & 4 ? 64 : 0};
    const size_t which = (choice >> 4) % reference_.size();
    const Codec& codec = *reference_[which];
    fuzz::Expect(codec.Supports(shape, place).empty());
    std::vector<std::byte> in = fuzz::Copy(input.Rest());
    if (choice & 8) in.resize(codec.MaxEncodedBytes(shape, place));

    const auto numbers = static_cast<size_t>(shape.HalfBytes() / 2);
    std::vector<uint16_t> want(numbers);
    const CodecStatus status = Decode(codec, in, shape, place, &want);
    for (size_t i = which; i < fast_.size(); i += reference_.size()) {
      std::vector<uint16_t> got(numbers);
      fuzz::Expect(Decode(*fast_[i], in, shape, place, &got) == status);
      if (status == CodecStatus::kOk) fuzz::Expect(got == want);
    }
    if (status != CodecStatus::kOk || lossless_) return;
    for (const uint16_t x : want) fuzz::Expect((x & 0x7c00) != 0x7c00);
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
  std::vector<std::unique_ptr<Codec>> reference_;  // One for each set of parameters.
  std::vector<std::unique_ptr<Codec>> fast_;       // The same for each instruction set.
};

}  // namespace cairn::codecs
