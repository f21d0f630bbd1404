#include "cairn/common/hash.h"

#include <openssl/evp.h>

#include "common/memory/bulk_copy.h"

namespace cairn {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Fetched once: EVP_sha256() is resolved against the providers at each initialisation.
const EVP_MD* Sha256Method() {
  static const EVP_MD* const method = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return method;
}

}  // namespace

std::string Digest::Hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (uint8_t b : bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

Result<Digest> Digest::FromBytes(std::string_view view, std::string_view field) {
  if (view.size() != 32) {
    return InvalidArgument("field '{}': got {} bytes, expected 32", field, view.size());
  }
  Digest d;
  std::memcpy(d.bytes.data(), view.data(), 32);
  return d;
}

Result<Digest> Digest::FromHex(std::string_view hex, std::string_view field) {
  if (hex.size() != 64) {
    return InvalidArgument("field '{}': got {} characters, expected 64 hexadecimal digits", field,
                           hex.size());
  }
  Digest d;
  for (size_t i = 0; i < 32; ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return InvalidArgument("field '{}': got '{}', expected 64 hexadecimal digits", field, hex);
    }
    d.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return d;
}

struct Sha256::Impl {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  Impl() { CAIRN_CHECK(EVP_DigestInit_ex(ctx, Sha256Method(), nullptr) == 1); }
  // No method: the context keeps its own, which saves a look-up per digest.
  void Begin() { CAIRN_CHECK(EVP_DigestInit_ex(ctx, nullptr, nullptr) == 1); }
  ~Impl() { EVP_MD_CTX_free(ctx); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;

Sha256& Sha256::Update(std::span<const std::byte> data) {
  CAIRN_CHECK(EVP_DigestUpdate(impl_->ctx, data.data(), data.size()) == 1);
  return *this;
}

Sha256& Sha256::Update(std::string_view data) { return Update(std::as_bytes(std::span(data))); }

Sha256& Sha256::UpdateU32(uint32_t value) {
  std::array<uint8_t, 4> le;
  for (int i = 0; i < 4; ++i) le[i] = static_cast<uint8_t>(value >> (8 * i));
  return Update(std::as_bytes(std::span(le)));
}

Sha256& Sha256::UpdateU64(uint64_t value) {
  std::array<uint8_t, 8> le;
  for (int i = 0; i < 8; ++i) le[i] = static_cast<uint8_t>(value >> (8 * i));
  return Update(std::as_bytes(std::span(le)));
}

Sha256& Sha256::UpdateField(std::string_view data) { return UpdateU64(data.size()).Update(data); }

Digest Sha256::Finish() {
  Digest d;
  CAIRN_CHECK(EVP_DigestFinal_ex(impl_->ctx, d.bytes.data(), nullptr) == 1);
  impl_->Begin();
  return d;
}

Digest Sha256::Of(std::string_view data) {
  Sha256 sha;
  return sha.Update(data).Finish();
}

uint64_t Xxh3(std::span<const std::byte> data) { return BulkXxh3(data); }

}  // namespace cairn
