#pragma once
// Builds the rectangle that a reader wants from parts of any other shape: four ranks read what two
// wrote.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"

namespace cairn::client {

// Fills the rectangle `want` of one block, raw codec: layer -> plane -> KV head -> token -> dim,
// without gaps. A plane with fewer heads than the grid is there when `want` begins at head 0.
// Thread-compatible; different instances are independent.
class RectAssembler {
 public:
  // Bytes of the rectangle. REQUIRES: layout is native and valid, `want` lies in its grid.
  static uint64_t Bytes(const Layout& layout, const format::PartRect& want);

  // INVALID_ARGUMENT when the layout is opaque, `want` is not in its grid, or `destination` has
  // another size than Bytes. `layout` and `destination` outlive the assembler.
  static Result<RectAssembler> Create(const Layout& layout, const format::PartRect& want,
                                      std::span<std::byte> destination);

  // Copies what `want` needs of a verified slice: layer `layer` of a part with rectangle `part`. A
  // slice that overlaps nothing is ignored. INVALID_ARGUMENT when the rectangle is not in the grid,
  // the layer not in the part, or the size is not the layout's.
  Status Add(const format::PartRect& part, uint32_t layer, std::span<const std::byte> slice);

  // Every head of the layer has been filled. Layers without planes still need their (empty) slices.
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
