#pragma once
// The two hashes of the product: SHA-256 names things, and XXH3-64 protects bytes from corruption.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn {

// 32 opaque bytes.
struct Digest {
  std::array<uint8_t, 32> bytes{};

  auto operator<=>(const Digest&) const = default;
  bool IsZero() const { return *this == Digest{}; }
  std::string Hex() const;
  std::string_view View() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // INVALID_ARGUMENT naming `field` unless `view` has exactly 32 bytes.
  static Result<Digest> FromBytes(std::string_view view, std::string_view field);
  static Result<Digest> FromHex(std::string_view hex, std::string_view field);

  // For tables in memory: depends on a secret of this process, because whoever sends a digest may
  // have chosen its bytes.
  uint64_t Hash() const;
  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.Hash());
  }
};

// Incremental SHA-256 over one reused OpenSSL context (3 x faster than a context per digest). Not
// thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Update(std::span<const std::byte> data);
  Sha256& Update(std::string_view data);
  // Little-endian.
  Sha256& UpdateU32(uint32_t value);
  Sha256& UpdateU64(uint64_t value);
  // Adds the length (u64, little-endian), then the bytes. The length keeps fields from running into
  // each other.
  Sha256& UpdateField(std::string_view data);
  // Returns the digest and starts a new hash.
  Digest Finish();

  static Digest Of(std::string_view data);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

uint64_t Xxh3(std::span<const std::byte> data);

}  // namespace cairn

template <>
struct std::hash<cairn::Digest> {
  size_t operator()(const cairn::Digest& d) const noexcept { return static_cast<size_t>(d.Hash()); }
};
