#pragma once
// Builds the rectangle that a reader wants from parts of any other shape. For example, four ranks
// can read what two ranks wrote.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn::client {

// Fills the rectangle `want` of one block, raw codec: layer -> plane -> KV head -> token -> dim,
// without gaps. A plane with fewer heads than the grid is in the rectangle only when `want` begins
// at head 0. Thread-compatible; different instances are independent.
class RectAssembler {
 public:
  // The size of the rectangle in bytes. REQUIRES: the layout is native and valid, and `want` lies
  // in its grid.
  static uint64_t Bytes(const Layout& layout, const format::PartRect& want);

  // INVALID_ARGUMENT when the layout is opaque, `want` is not in its grid, or the size of
  // `destination` is not Bytes(layout, want). `layout` and `destination` must outlive the
  // assembler.
  static Result<RectAssembler> Create(const Layout& layout, const format::PartRect& want,
                                      std::span<std::byte> destination);

  // Copies the bytes that `want` needs out of a verified slice, which is layer `layer` of a part
  // with rectangle `part`. Ignores a slice that does not overlap `want`. INVALID_ARGUMENT when the
  // rectangle is not in the grid, the layer is not in the part, or the slice does not have the size
  // that the layout gives it.
  Status Add(const format::PartRect& part, uint32_t layer, std::span<const std::byte> slice);

  // True when every head of the layer has been filled. Layers without planes need their (empty)
  // slices too.
  bool LayerComplete(uint32_t layer) const;
  bool Complete() const { return missing_cells_ == 0; }

 private:
  RectAssembler(const Layout& layout, const format::PartRect& want,
                std::span<std::byte> destination);

  const Layout* layout_;
  format::PartRect want_;
  std::span<std::byte> destination_;
  std::vector<uint64_t> layer_offset_;   // In destination_, by layer - want_.layer_begin.
  std::vector<uint32_t> layer_missing_;  // Heads not filled yet.
  std::vector<bool> filled_;             // By layer, head.
  uint32_t missing_cells_ = 0;
};

}  // namespace cairn::client
