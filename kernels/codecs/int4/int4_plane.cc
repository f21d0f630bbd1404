#include "kernels/codecs/int4/int4_plane.h"

#include <algorithm>

#include "kernels/codecs/multiple.h"
#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {

std::string Int4TokenPlane::Supports(int64_t, int64_t dim) const { return CheckMultiple(dim, 32); }

size_t Int4TokenPlane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace&) const {
  return static_cast<size_t>(tokens * kernels::Int4TokenRowBytes(dim, params_.group));
}

bool Int4TokenPlane::EncodeHead(const kernels::HalfRows& x, const HeadPlace&,
                                std::byte* out) const {
  return EncodeRows(kernels_.int4_token_encode, x, params_, out);
}

bool Int4TokenPlane::DecodeHead(const std::byte* in, const HeadPlace&,
                                const kernels::MutableHalfRows& y) const {
  return DecodeRows(kernels_.int4_token_decode, in, params_, y);
}

std::string Int4ChannelPlane::Supports(int64_t, int64_t dim) const {
  return CheckMultiple(dim, 32);
}

int64_t Int4ChannelPlane::GroupTokens(int64_t first, int64_t left) const {
  return std::min(group_ - first % group_, left);
}

size_t Int4ChannelPlane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const {
  int64_t bytes = 0;
  for (int64_t t = 0; t < tokens;) {
    const int64_t count = GroupTokens(place.first_token + t, tokens - t);
    bytes += kernels::Int4ChannelBytes(count, dim);
    t += count;
  }
  return static_cast<size_t>(bytes);
}

bool Int4ChannelPlane::EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                                  std::byte* out) const {
  for (int64_t t = 0; t < x.rows;) {
    const int64_t count = GroupTokens(place.first_token + t, x.rows - t);
    if (!EncodeRows(kernels_.int4_channel_encode, x.Part(t, count), {}, out)) return false;
    out += kernels::Int4ChannelBytes(count, x.dim);
    t += count;
  }
  return true;
}

bool Int4ChannelPlane::DecodeHead(const std::byte* in, const HeadPlace& place,
                                  const kernels::MutableHalfRows& y) const {
  for (int64_t t = 0; t < y.rows;) {
    const int64_t count = GroupTokens(place.first_token + t, y.rows - t);
    if (!DecodeRows(kernels_.int4_channel_decode, in, {}, y.Part(t, count))) return false;
    in += kernels::Int4ChannelBytes(count, y.dim);
    t += count;
  }
  return true;
}

}  // namespace cairn::codecs
