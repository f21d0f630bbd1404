#pragma once
// Parts on the grid of layers x KV heads: which parts a writer may add, when a block is complete,
// and how the bytes of a part must look.
//
// The committed parts of a block never overlap. A rectangle whose cells are all committed is
// ALREADY_EXISTS (the first commit wins). A rectangle that crosses a committed one is
// INVALID_ARGUMENT: all writers of a block must cut the grid in the same way, or one of them must
// cut the pieces of the other further (../index/pending_blocks.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "services/cache/store/block/layer_sizes.h"

namespace cairn::cache {

enum class PartFit { kFree, kCovered, kOverlaps, kOtherPool };

uint32_t CommonCells(const format::PartRect& a, const format::PartRect& b);

// How `part` fits to rectangles that do not overlap each other.
PartFit FitPart(const format::PartRect& part, std::span<const format::PartRect> taken);

// How the parts of a namespace must look. `layout` must outlive it.
struct PartForm {
  const Layout& layout;
  format::Codec codec = format::Codec::kRaw;
  // In the host tier of a ladder: the codec in which parts come back from disk.
  std::optional<format::Codec> or_codec = std::nullopt;
  // Slices hold selected rows (format/selected_slice.h), so parts are smaller with any codec.
  bool selected = false;
  std::shared_ptr<const LayerSizes> sizes = std::make_shared<const LayerSizes>(layout);
};

// Checks the rectangle and the size of a reservation. The rectangle must lie on the grid. The size
// must be what the layout says, or at most that if the codec makes parts smaller. INVALID_ARGUMENT,
// which names the field. The work does not grow with the layers of the rectangle.
Status ValidatePart(const PartForm& form, const format::PartRect& rect, uint64_t bytes,
                    uint32_t max_bytes);

// Makes the bytes of a part that lay here before unreadable, so that only a writer that writes a
// header makes a part.
void ClearHeader(const format::PartRect& rect, std::span<std::byte> part);

// Checks the header, hashes and sizes of a part's bytes against the reservation. DATA_LOSS: a hash
// does not match. INVALID_ARGUMENT: the header differs from the reservation.
Status VerifyPartBytes(const PartForm& form, const format::PartRect& rect,
                       std::span<const std::byte> part);
// The same without the slices, for readers that hash slice by slice.
Result<format::PartHeader> CheckedHeader(const PartForm& form, const format::PartRect& rect,
                                         std::span<const std::byte> part);
// The same of the beginning of a part of `bytes`, which has the header.
Result<format::PartHeader> CheckedHeader(const PartForm& form, const format::PartRect& rect,
                                         std::span<const std::byte> head, uint64_t bytes);

// The most bytes of the slices of a part with this rectangle. nullopt: an opaque layout.
std::optional<uint64_t> MostSliceBytes(const PartForm& form, const format::PartRect& rect);

}  // namespace cairn::cache
