#include "clients/cpp/src/checks.h"

#include "common/keys/call_limits.h"

namespace cairn::client {

Status CheckKeys(std::span<const BlockKey> keys) {
  if (!keys.empty() && keys.size() <= kMaxKeysPerCall) return OkStatus();
  return InvalidArgument("field 'keys': got {} keys, expected 1 to {}", keys.size(),
                         kMaxKeysPerCall);
}

Status CheckHolders(std::span<const std::string> holders) {
  if (holders.size() > kMaxHolders) {
    return InvalidArgument("field 'holders': got {} nodes, expected at most {}", holders.size(),
                           kMaxHolders);
  }
  for (size_t i = 0; i < holders.size(); ++i) {
    if (!holders[i].empty() && holders[i].size() <= kMaxNodeId) continue;
    return InvalidArgument(
        "field 'holders[{}]': got {} characters, expected the id of a node, of 1 to {}", i,
        holders[i].size(), kMaxNodeId);
  }
  return OkStatus();
}

Status CheckWait(Duration wait, uint32_t wait_blocks, size_t keys) {
  constexpr Duration kMost = std::chrono::seconds(600);
  if (wait < Duration(0) || wait > kMost) {
    return InvalidArgument("field 'wait': got {} s, expected 0 to {} s", Seconds(wait),
                           Seconds(kMost));
  }
  if (wait_blocks > keys) {
    return InvalidArgument("field 'wait_blocks': got {}, expected at most the {} keys", wait_blocks,
                           keys);
  }
  return OkStatus();
}

Status CheckPools(const JointQuestion& joint) {
  if (joint.pools.size() <= kMaxPools) return OkStatus();
  return InvalidArgument("field 'joint.pools': got {} pools, expected at most {}",
                         joint.pools.size(), kMaxPools);
}

Status CheckLayers(const LayerRange& layers) {
  if (layers.end == 0 || layers.begin < layers.end) return OkStatus();
  return InvalidArgument("field 'layers': got [{}, {}), expected the first below the second",
                         layers.begin, layers.end);
}

Status CheckRange(const FetchRange& range, uint32_t lease_blocks) {
  const uint32_t block_end = range.block_end == 0 ? lease_blocks : range.block_end;
  if (range.block_begin >= block_end || block_end > lease_blocks) {
    return InvalidArgument(
        "field 'blocks': got [{}, {}), expected a range within the lease's {} blocks",
        range.block_begin, block_end, lease_blocks);
  }
  return CheckLayers({range.layer_begin, range.layer_end});
}

}  // namespace cairn::client
