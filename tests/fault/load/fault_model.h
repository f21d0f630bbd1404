#pragma once
// The blocks that the fault tests store: their bytes follow from their name, so that every reader
// can verify every byte without asking a writer.
//
//   model = FaultModel(options)        same options, same namespace, in every process
//   prompt = model.MakePrompt(7)       same number, same chain of keys;
//                                      prompts share prefixes and branch
//   part = model.MakePart(key, rect)   sealed; any rectangle of the grid
//   model.SliceIsRight(key, rect, layer, bytes)
//
// A cell (layer, plane, KV head) has bytes of its own, so rows that end up in another place are
// found, not only flipped bits.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"

namespace cairn::fault {

struct FaultModelOptions {
  std::string tenant = "fault";
  std::string model = "fault";  // Another name is another namespace with other bytes.
  uint32_t layers = 4;
  uint32_t kv_heads = 3;
  uint32_t dim = 8;  // 16-bit numbers.
  uint32_t block_tokens = 16;
  // Shape of the tree of prompts.
  uint32_t roots = 4;
  uint32_t branching = 3;
  uint32_t depth = 10;  // Blocks of the longest prompt.
};

// Immutable.
class FaultModel {
 public:
  explicit FaultModel(const FaultModelOptions& options);

  const NamespaceSpec& spec() const { return spec_; }
  const Layout& layout() const { return spec_.layout; }
  const Digest& fingerprint() const { return fingerprint_; }
  format::PartRect whole() const { return spec_.layout.WholeRect(); }

  // Keys of the prompt's blocks, 1 to `depth` of them.
  std::vector<BlockKey> MakePrompt(uint64_t number) const;
  std::vector<std::byte> MakePart(const BlockKey& key, const format::PartRect& rect) const;
  uint64_t PartBytes(const format::PartRect& rect) const;

  bool SliceIsRight(const BlockKey& key, const format::PartRect& rect, uint32_t layer,
                    std::span<const std::byte> bytes) const;
  // The result of RectAssembler for a block: the raw rectangle.
  std::vector<std::byte> RectBytes(const BlockKey& key, const format::PartRect& rect) const;

 private:
  void FillSlice(const BlockKey& key, uint32_t layer, const format::PartRect& rect,
                 std::span<std::byte> out) const;

  const FaultModelOptions options_;
  NamespaceSpec spec_;
  Digest fingerprint_;
};

}  // namespace cairn::fault
