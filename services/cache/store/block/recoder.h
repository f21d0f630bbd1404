#pragma once
// Encodes parts again for the lower rung of a ladder. With the recipe "host=A>disk=B" this makes
// the form in which a block lies on disk.
//
// The result depends only on the stored bytes, on the place of the part in its block, and on
// whether the block begins a sequence, so it is the same on every machine. Nothing is encoded back
// to a higher rung: a part in the lower codec stays in it, in every tier.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "common/keys/part_codec.h"
#include "services/cache/store/block/part_grid.h"

namespace cairn::cache {

// Page-aligned memory of one part.
class PartBuffer {
 public:
  PartBuffer() = default;
  // RESOURCE_EXHAUSTED: the system has no memory.
  static Result<PartBuffer> Of(size_t capacity);
  // Empty: there is none.
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }
  // REQUIRES: at most the capacity.
  void Shrink(size_t size) { size_ = size; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

// The largest layer of a block in half precision that a ladder takes. A part may be tiny and say
// that it decodes to anything; this much memory a copy takes for its numbers at most.
inline constexpr int64_t kMaxLayerBytes = 64 << 20;

// Immutable; thread-safe. Knows codecs, not tiers.
class Recoder {
 public:
  // INVALID_ARGUMENT, which names the field 'recipe': a layer of a whole block is larger than
  // kMaxLayerBytes. REQUIRES: as Create.
  static Status Check(const Layout& layout, const PartCodecs& codecs);
  // nullptr: the codecs are not those of a ladder. REQUIRES: PartCodecsOf made them for this
  // layout.
  static std::unique_ptr<const Recoder> Create(const Layout& layout, const PartCodecs& codecs);

  // Returns the part in the codec of the disk. Empty: it already is in that codec. `at_start`: its
  // block begins a sequence. DATA_LOSS: the bytes do not match their hash, or no encoder wrote
  // them. INVALID_ARGUMENT: their numbers cannot be encoded (NaN, infinity), or not within
  // `max_bytes`. RESOURCE_EXHAUSTED: the system has no memory. Somebody may write to `part` during
  // the call: only bytes that were verified are used. Takes memory for the numbers of one layer
  // and for at most `max_bytes`.
  Result<PartBuffer> Recode(const format::PartRect& rect, std::span<const std::byte> part,
                            bool at_start, uint64_t max_bytes) const;

  // An upper bound of the size, for a block of one part.
  uint64_t MaxBlockBytes(bool at_start) const;
  // The memory that Recode takes in addition to its result, at most about.
  uint64_t WorkingBytes() const { return working_bytes_; }

 private:
  struct Slice;
  Recoder(const Layout& layout, const PartCodecs& codecs);
  uint64_t MaxPartBytes(const format::PartRect& rect, bool at_start) const;
  Slice SliceOf(uint32_t layer, const format::PartRect& rect, bool at_start) const;

  const Layout layout_;
  const PartForm form_;
  const format::Codec on_disk_;
  const std::shared_ptr<const codecs::Codec> from_;
  const std::shared_ptr<const codecs::Codec> to_;
  uint64_t working_bytes_ = 0;
};

}  // namespace cairn::cache
