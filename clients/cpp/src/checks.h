#pragma once
// The checks that every client makes before it calls the node, with the same texts on each path.

#include <cstdint>
#include <span>
#include <string>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// INVALID_ARGUMENT naming the field.
Status CheckKeys(std::span<const BlockKey> keys);
Status CheckHolders(std::span<const std::string> holders);
Status CheckWait(Duration wait, uint32_t wait_blocks, size_t keys);
Status CheckPools(const JointQuestion& joint);
Status CheckLayers(const LayerRange& layers);
Status CheckRange(const FetchRange& range, uint32_t lease_blocks);

}  // namespace cairn::client
