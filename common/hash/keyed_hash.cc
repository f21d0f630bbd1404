#include "common/hash/keyed_hash.h"

#include <random>

namespace cairn {

const KeyedHash& KeyedHash::OfProcess() {
  static const KeyedHash hash = [] {
    std::random_device device;
    const auto word = [&device] { return (uint64_t{device()} << 32) | device(); };
    const uint64_t k0 = word();
    return KeyedHash(k0, word());
  }();
  return hash;
}

uint64_t Digest::Hash() const { return KeyedHash::OfProcess()(*this); }

}  // namespace cairn
