#include "kernels/codecs/raw/raw_plane.h"

#include <cstring>

namespace cairn::codecs {

std::string RawPlane::Supports(int64_t, int64_t) const { return {}; }

size_t RawPlane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace&) const {
  return static_cast<size_t>(2 * tokens * dim);
}

bool RawPlane::EncodeHead(const kernels::HalfRows& x, const HeadPlace&, std::byte* out) const {
  const auto row_bytes = static_cast<size_t>(2 * x.dim);
  for (int64_t r = 0; r < x.rows; ++r, out += row_bytes) std::memcpy(out, x.row(r), row_bytes);
  return true;
}

bool RawPlane::DecodeHead(const std::byte* in, const HeadPlace&,
                          const kernels::MutableHalfRows& y) const {
  const auto row_bytes = static_cast<size_t>(2 * y.dim);
  for (int64_t r = 0; r < y.rows; ++r, in += row_bytes) std::memcpy(y.row(r), in, row_bytes);
  return true;
}

}  // namespace cairn::codecs
