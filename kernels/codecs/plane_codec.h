#pragma once
// How one KV head of one plane is stored: the piece that most codecs are made of. PlanewiseCodec
// makes a Codec of two, one for keys and one for values.
//
// The size of an encoded head follows from its shape alone and depends on no other head, so a
// reader that wants only some heads of a slice can find them.

#include <cstddef>
#include <cstdint>
#include <string>

#include "cairn/kernels/codec/rows.h"
#include "kernels/codecs/codec.h"

namespace cairn::codecs {

enum class PlaneRole { kKeys, kValues };

// The tokens of one head, without those that are stored separately (the sink).
struct HeadPlace {
  int64_t layer = 0;
  PlaneRole role = PlaneRole::kKeys;
  // Index of the first token in the block. Groups of tokens begin at multiples of their size in the
  // block, no matter how many tokens are stored separately.
  int64_t first_token = 0;
};

// Immutable: any thread may use it at any time.
class PlaneCodec {
 public:
  virtual ~PlaneCodec() = default;

  // Empty, or why heads of this size cannot be stored.
  virtual std::string Supports(int64_t tokens, int64_t dim) const = 0;
  virtual size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const = 0;
  // Writes HeadBytes. False: NaN or infinity in x.
  virtual bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                          std::byte* out) const = 0;
  // Reads HeadBytes. False: no encoder writes these bytes.
  virtual bool DecodeHead(const std::byte* in, const HeadPlace& place,
                          const kernels::MutableHalfRows& y) const = 0;
};

}  // namespace cairn::codecs
