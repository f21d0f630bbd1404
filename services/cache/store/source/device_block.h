#pragma once
// A block that lies in this node's GPU memory, for a source of another node to take.

#include <memory>
#include <vector>

#include "services/cache/store/source/block_source.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

// A block in the device tier of this node, as it is stored. `extents`: one for each of its parts;
// they stay as they are as long as `hold`.
struct DeviceBlock {
  SourceBlock block;
  std::vector<Extent> extents;
  std::shared_ptr<const void> hold;
};

}  // namespace cairn::cache
