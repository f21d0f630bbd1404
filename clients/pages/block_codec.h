#pragma once
// A codec for whole blocks of an engine: the layers' slices behind each other, each as the codec of
// kernels/codecs writes it. Knows no device.

#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/common/status.h"
#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::pages {

struct BlockShape {
  uint32_t layers = 0;
  uint32_t heads = 0;  // The number of key heads, which is also the number of value heads.
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;
  uint32_t tokens = 0;
};

// Immutable.
class BlockCodec {
 public:
  // `codec`: a codec as recipes name it, with or without parameters: "turbo:bits=4".
  // INVALID_ARGUMENT, naming 'codec' and the reason: it is none, is raw, has a selection or a
  // ladder, gives blocks of different sizes (cachegen), or cannot store such planes.
  static Result<BlockCodec> Create(std::string_view codec, const BlockShape& shape);

  // With all parameters that it has.
  const std::string& canonical() const { return canonical_; }
  const BlockShape& shape() const { return shape_; }
  // The bytes of one layer, and those of a block, whose first token is at this position of its
  // sequence: at 0 some codecs store tokens in full.
  uint64_t SliceBytes(uint64_t first_position) const;
  uint64_t BlockBytes(uint64_t first_position) const {
    return shape_.layers * SliceBytes(first_position);
  }
  // The most bytes of any block.
  uint64_t MostBytes() const { return BlockBytes(0); }
  // Without strides.
  const kernels::SliceForm& form() const { return form_; }
  kernels::SliceTask Task(uint32_t layer, uint64_t first_position) const;

 private:
  BlockCodec(std::string canonical, const BlockShape& shape, const kernels::SliceForm& form)
      : canonical_(std::move(canonical)), shape_(shape), form_(form) {}

  std::string canonical_;
  BlockShape shape_;
  kernels::SliceForm form_;
};

}  // namespace cairn::pages
