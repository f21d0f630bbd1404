#pragma once
// Encodes parts again for the lower rung of a ladder: what a block is on disk, where its recipe
// says "host=A>disk=B".
//
// The result is a pure function of the stored bytes, of where the part lies in its block, and of
// whether the block begins a sequence: the same on every machine. Nothing is encoded up again: a
// part in the lower codec stays as it is, wherever it goes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "common/keys/part_codec.h"
#include "services/cache/block/part_grid.h"

namespace cairn::codecs {
class Codec;
}

namespace cairn::cache {

// Page-aligned memory of one part.
class PartBuffer {
 public:
  PartBuffer() = default;
  explicit PartBuffer(size_t capacity);
  // Empty where there is none.
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

// Immutable; thread-safe. Knows codecs, not tiers.
class Recoder {
 public:
  // nullptr when the namespace's recipe is no ladder. INVALID_ARGUMENT naming what a rung cannot
  // store of this layout; errors as PartCodecsOf. REQUIRES: Validate(spec).ok().
  static Result<std::unique_ptr<const Recoder>> Create(const NamespaceSpec& spec);
  ~Recoder();

  // The part in the codec of the disk; empty when it is in that already. `at_start`: its block
  // begins a sequence. DATA_LOSS when the bytes fail their hash or no encoder wrote them;
  // INVALID_ARGUMENT when their numbers cannot be encoded (NaN, infinity). `part` may be written to
  // meanwhile: what is used is what was verified.
  Result<PartBuffer> Recode(const format::PartRect& rect, std::span<const std::byte> part,
                            bool at_start) const;

  // A bound for a block of one part.
  uint64_t MaxBlockBytes(bool at_start) const;

 private:
  struct Slice;
  Recoder(const NamespaceSpec& spec, const PartCodecs& ids,
          std::unique_ptr<const codecs::Codec> from, std::unique_ptr<const codecs::Codec> to);
  uint64_t MaxPartBytes(const format::PartRect& rect, bool at_start) const;
  Slice SliceOf(uint32_t layer, const format::PartRect& rect, bool at_start) const;

  const Layout layout_;
  const PartCodecs ids_;
  const PartForm form_;
  const std::unique_ptr<const codecs::Codec> from_;
  const std::unique_ptr<const codecs::Codec> to_;
};

}  // namespace cairn::cache
