#pragma once
// Blocks that are encoded on the device, straight out of the engine's pages, and decoded into them.

#include <memory>
#include <vector>

#include "clients/pages/block_codec.h"
#include "clients/pages/block_form.h"

namespace cairn::pages {

// Where keys and values of one layer lie: number d of token n of head h of block b is at
// address + b * block_stride + 2 * (h * head_stride + n * token_stride + d).
struct CodedLayer {
  uint64_t k = 0, v = 0;      // Addresses.
  uint64_t block_stride = 0;  // In bytes.
};
struct NumberStrides {
  int64_t head = 0, token = 0;  // In numbers.
};
struct CodedPages {
  std::vector<CodedLayer> layers;  // In the order of the model.
  uint32_t blocks = 0;
  NumberStrides k, v;     // The same in all layers.
  bool bfloat16 = false;  // Else half precision.
};

// A flat block is what BlockCodec says. A block is refused if a number is not finite, if bfloat16
// has one that half precision does not have, or if no encoder writes such bytes.
// INVALID_ARGUMENT names the field: other layers than the codec's shape has, no blocks, and
// addresses and strides that are no multiples of 16 bytes. `kernels` outlive the form.
Result<std::unique_ptr<BlockForm>> CodedForm(const BlockCodec& codec, CodedPages pages,
                                             const kernels::batch::SliceTable& kernels);

}  // namespace cairn::pages
