#include "kernels/codecs/turbo/turbo_plane.h"

#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {

void TurboSigns(int64_t layer, PlaneRole role, int64_t dim, uint32_t* signs) {
  // SplitMix64 (Steele, Lea, Flood 2014), one step for 64 dimensions.
  uint64_t state = 0x436169726e54514bULL +
                   (static_cast<uint64_t>(layer) * 2 + (role == PlaneRole::kValues ? 1 : 0)) *
                       0xd1342543de82ef95ULL;
  uint64_t bits = 0;
  for (int64_t d = 0; d < dim; ++d) {
    if (d % 64 == 0) {
      state += 0x9e3779b97f4a7c15ULL;
      bits = state;
      bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
      bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
      bits ^= bits >> 31;
    }
    signs[d] = (bits >> (d % 64) & 1) != 0 ? 0x80000000u : 0;
  }
}

std::string TurboPlane::Supports(int64_t, int64_t dim) const {
  if (dim == 64 || dim == 128 || dim == 256 || dim == 512) return {};
  return "dim: got " + std::to_string(dim) + ", expected 64, 128, 256 or 512";
}

size_t TurboPlane::HeadBytes(int64_t tokens, int64_t dim, const HeadPlace&) const {
  return static_cast<size_t>(tokens * kernels::TurboRowBytes(dim, bits_));
}

bool TurboPlane::EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                            std::byte* out) const {
  uint32_t signs[kernels::kMaxHeadDim];
  if (signs_ == nullptr) TurboSigns(place.layer, place.role, x.dim, signs);
  return EncodeRows(kernels_.turbo_encode, x, {bits_, signs_ == nullptr ? signs : signs_}, out);
}

bool TurboPlane::DecodeHead(const std::byte* in, const HeadPlace& place,
                            const kernels::MutableHalfRows& y) const {
  uint32_t signs[kernels::kMaxHeadDim];
  if (signs_ == nullptr) TurboSigns(place.layer, place.role, y.dim, signs);
  return DecodeRows(kernels_.turbo_decode, in, {bits_, signs_ == nullptr ? signs : signs_}, y);
}

}  // namespace cairn::codecs
