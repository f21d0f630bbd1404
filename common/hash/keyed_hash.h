#pragma once
// The hash of tables that are filled with keys from the network: SipHash-1-3 (Aumasson and
// Bernstein, "SipHash: a fast short-input PRF", 2012), whose collisions nobody can find without the
// secret. Thread-safe.

#include <bit>
#include <cstdint>
#include <cstring>

#include "cairn/common/hash.h"

namespace cairn {

class KeyedHash {
 public:
  // The secret's two halves. Whoever knows them can make keys collide.
  constexpr KeyedHash(uint64_t k0, uint64_t k1) : k0_(k0), k1_(k1) {}
  // A secret of 16 bytes from 8.
  explicit constexpr KeyedHash(uint64_t seed)
      : KeyedHash(seed, (seed ^ 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull) {}

  // With a secret that the process chose when it first asked.
  static const KeyedHash& OfProcess();

  uint64_t operator()(const Digest& digest) const {
    State s{k0_ ^ 0x736f6d6570736575ull, k1_ ^ 0x646f72616e646f6dull, k0_ ^ 0x6c7967656e657261ull,
            k1_ ^ 0x7465646279746573ull};
    for (size_t at = 0; at < sizeof(digest.bytes); at += 8) {
      uint64_t word;
      std::memcpy(&word, digest.bytes.data() + at, sizeof(word));
      s.Add(word);
    }
    s.Add(uint64_t{sizeof(digest.bytes)} << 56);
    s.v2 ^= 0xff;
    for (int round = 0; round < 3; ++round) s.Round();
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
  }

 private:
  struct State {
    uint64_t v0, v1, v2, v3;
    void Round() {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
    void Add(uint64_t word) {
      v3 ^= word;
      Round();
      v0 ^= word;
    }
  };

  uint64_t k0_;
  uint64_t k1_;
};

}  // namespace cairn
