#pragma once
// Keys and values of a sequence's first tokens that are not in its pages: they lie somewhere else,
// and are brought layer by layer, some at a time, so that attention never needs room for all.
//
//   for each layer:  Begin -> Next, until all tokens were given -> End
//
// Order and sums are those of a sequence with all of its pages, so results are the same to the last
// bit (kernels/attention.h; decode: splits of the same tokens).

#include <cstddef>
#include <cstdint>
#include <span>

#include "cairn/common/status.h"

namespace cairn::worker {

// Not thread-safe: the thread that calls Transformer::Forward.
class EarlierKv {
 public:
  // Windows begin and end at multiples of this many tokens: of the tile of prefill attention, of
  // the split of decode, and of every size of a block.
  static constexpr int64_t kUnitTokens = 256;

  virtual ~EarlierKv() = default;

  // A multiple of kUnitTokens: the base of the sequence.
  virtual int64_t tokens() const = 0;

  // The tokens that come next: a multiple of kUnitTokens, not 0.
  struct Window {
    int64_t tokens = 0;
    // One per block: K and V of the layer as they lie in a page, KvLayout::layer_bytes() bytes.
    std::span<const std::byte* const> slices = {};
  };
  // From the first token on. Errors end the forward pass with them.
  virtual Status Begin(int layer) = 0;
  // May wait. Valid until the next call.
  virtual Result<Window> Next() = 0;
  // All that was given since Begin was right when it was read; otherwise an error.
  virtual Status End() = 0;
};

}  // namespace cairn::worker
