#include "kernels/codecs/int8/int8_plane.h"

#include "kernels/codecs/multiple.h"
#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {

std::string Int8Plane::Supports(int64_t, int64_t dim) const { return CheckMultiple(dim, 16); }

size_t Int8Plane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace&) const {
  return static_cast<size_t>(tokens * kernels::Int8RowBytes(dim, params_.group));
}

bool Int8Plane::EncodeHead(const kernels::HalfRows& x, const HeadPlace&, std::byte* out) const {
  return EncodeRows(kernels_.int8_encode, x, params_, out);
}

bool Int8Plane::DecodeHead(const std::byte* in, const HeadPlace&,
                           const kernels::MutableHalfRows& y) const {
  return DecodeRows(kernels_.int8_decode, in, params_, y);
}

}  // namespace cairn::codecs
