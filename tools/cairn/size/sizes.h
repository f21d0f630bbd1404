#pragma once
// The memory of a layout in a node, recipe by recipe.

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"

namespace cairn::cli::size {

// How far the bytes of a block can be told without its numbers.
enum class Certainty : uint8_t {
  kExact,      // They follow from the layout. A block at the start of a sequence may be larger by
               // the sink rows of the recipe.
  kEstimated,  // They depend on the numbers: taken from normally distributed ones.
};

// The size of one block that one writer stores as one part.
struct BlockSize {
  Certainty certainty = Certainty::kExact;
  uint64_t bytes = 0;         // Header and slices.
  uint64_t header_bytes = 0;  // How many of them are the header.
};

struct RecipeSize {
  std::string recipe;  // Canonical.
  BlockSize host;
  BlockSize disk;  // Differs from `host` where the recipe is a ladder.

  // The memory of a tier for a block: whole pages.
  uint64_t HostRoom() const;
  uint64_t DiskRoom() const;
};

// INVALID_ARGUMENT, UNIMPLEMENTED: the grammar of the recipe, or the recipe cannot store a plane;
// as a node says it when it opens the namespace.
Result<RecipeSize> SizeOf(const NativeLayout& layout, uint32_t block_tokens,
                          const std::string& recipe);

// How many blocks of `room` bytes fit into a host tier, whose extents do not span its segments.
uint64_t BlocksInHost(uint64_t capacity_bytes, uint64_t room);

}  // namespace cairn::cli::size
