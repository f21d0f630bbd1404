#pragma once
// Parts on the grid layers x KV heads: what a writer may add, when a block is complete, what a
// part's bytes must look like.
//
// Parts of a block never overlap. A rectangle whose cells are all taken is ALREADY_EXISTS (the
// first commit wins); one that overlaps in part is INVALID_ARGUMENT: writers of one block must cut
// the grid alike, or one inside the other's cut.

#include <cstdint>
#include <optional>
#include <span>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn::cache {

enum class PartFit { kFree, kCovered, kOverlaps };

// How `part` fits to rectangles that do not overlap each other.
PartFit FitPart(const format::PartRect& part, std::span<const format::PartRect> taken);

// REQUIRES: `parts` do not overlap and lie on the grid.
bool CoversGrid(const format::PartRect& whole, std::span<const format::PartRect> parts);

// What parts of a namespace look like. `layout` outlives it.
struct PartForm {
  const Layout& layout;
  format::Codec codec = format::Codec::kRaw;
  // In the host tier of a ladder: as parts come back from disk.
  std::optional<format::Codec> or_codec = std::nullopt;
  // Slices hold selected rows (format/selected_slice.h): then parts are smaller with any codec.
  bool selected = false;

  // Fewest and most bytes of a layer's slice with heads [head_begin, head_end). REQUIRES: native.
  struct Bytes {
    uint64_t least = 0, most = 0;
  };
  Bytes SliceBytes(uint32_t layer, uint32_t head_begin, uint32_t head_end) const;
};

// A reservation's rectangle and size: on the grid, and as large as the layout says; where a codec
// makes parts smaller, at most that. INVALID_ARGUMENT naming the field.
Status ValidatePart(const PartForm& form, const format::PartRect& rect, uint64_t bytes,
                    uint32_t max_bytes);

// Header, hashes and sizes of a part's bytes against what was reserved. DATA_LOSS when a hash
// fails, INVALID_ARGUMENT when the header says something else than the reservation.
Status VerifyPartBytes(const PartForm& form, const format::PartRect& rect,
                       std::span<const std::byte> part);
// The same without the slices: for readers who hash slice by slice.
Result<format::PartHeader> CheckedHeader(const PartForm& form, const format::PartRect& rect,
                                         std::span<const std::byte> part);

}  // namespace cairn::cache
