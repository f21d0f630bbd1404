#include "kernels/codecs/fp8/fp8_plane.h"

#include "kernels/codecs/multiple.h"
#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {

std::string Fp8Plane::Supports(int64_t, int64_t dim) const { return CheckMultiple(dim, 16); }

size_t Fp8Plane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace&) const {
  return static_cast<size_t>(tokens * kernels::Fp8RowBytes(dim));
}

bool Fp8Plane::EncodeHead(const kernels::HalfRows& x, const HeadPlace&, std::byte* out) const {
  return EncodeRows(kernels_.fp8_encode, x, {}, out);
}

bool Fp8Plane::DecodeHead(const std::byte* in, const HeadPlace&,
                          const kernels::MutableHalfRows& y) const {
  return DecodeRows(kernels_.fp8_decode, in, {}, y);
}

}  // namespace cairn::codecs
