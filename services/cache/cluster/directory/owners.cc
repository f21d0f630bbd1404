#include "services/cache/cluster/directory/owners.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

// The finaliser of MurmurHash3 (Appleby), over both. The low bits of a waymark's hash are zero.
uint64_t Mix(uint64_t hash, uint64_t member) {
  uint64_t x = hash ^ member;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return x;
}

}  // namespace

OwnerMap::OwnerMap(std::vector<std::string> ids) : ids_(std::move(ids)) {
  std::sort(ids_.begin(), ids_.end());
  hashes_.reserve(ids_.size());
  for (const std::string& id : ids_) hashes_.push_back(Xxh3(std::as_bytes(std::span(id))));
}

Owners OwnerMap::Of(WaymarkHash hash) const {
  Owners owners;
  uint64_t first = 0, second = 0;
  for (uint32_t i = 0; i < hashes_.size(); ++i) {
    const uint64_t weight = Mix(hash, hashes_[i]);
    if (i == 0 || weight > first) {
      owners.second = i == 0 ? 0 : owners.first;
      second = first;
      owners.first = i;
      first = weight;
    } else if (i == 1 || weight > second) {
      owners.second = i;
      second = weight;
    }
  }
  return owners;
}

std::vector<std::string> OwnerMap::IdsOf(WaymarkHash hash) const {
  if (empty()) return {};
  const Owners owners = Of(hash);
  if (owners.first == owners.second) return {ids_[owners.first]};
  return {ids_[owners.first], ids_[owners.second]};
}

}  // namespace cairn::cache
