// The keys of blocks that belong to a pool (namespace_spec.h).

#include <array>
#include <cstdint>
#include <string_view>

#include "cairn/common/namespace_spec.h"

namespace cairn {
namespace {

constexpr std::string_view kPoolMagic = "cairn.pool.v1";

std::array<Digest, kMaxPools> MakeMasks() {
  std::array<Digest, kMaxPools> masks{};  // That of pool 0 stays zero.
  Sha256 sha;
  for (uint32_t pool = 1; pool < kMaxPools; ++pool) {
    std::array<std::byte, 4> number;
    for (size_t i = 0; i < number.size(); ++i) {
      number[i] = static_cast<std::byte>(pool >> (8 * i));
    }
    sha.Update(kPoolMagic);
    sha.Update(std::span<const std::byte>(number));
    masks[pool] = sha.Finish();
  }
  return masks;
}

}  // namespace

const Digest& PoolMask(uint32_t pool) {
  static const std::array<Digest, kMaxPools> masks = MakeMasks();
  return masks[pool];
}

BlockKey PoolKey(const BlockKey& unit_key, uint32_t pool) {
  if (pool == 0) return unit_key;
  const Digest& mask = PoolMask(pool);
  BlockKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    key.bytes[i] = static_cast<uint8_t>(unit_key.bytes[i] ^ mask.bytes[i]);
  }
  return key;
}

std::vector<BlockKey> PoolKeys(std::span<const BlockKey> unit_keys, uint32_t units, uint32_t pool) {
  std::vector<BlockKey> keys(unit_keys.size() / units);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = PoolKey(unit_keys[(i + 1) * units - 1], pool);
  return keys;
}

}  // namespace cairn
