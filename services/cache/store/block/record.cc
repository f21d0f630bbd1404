#include "services/cache/store/block/record.h"

#include <cmath>
#include <cstring>

namespace cairn::cache {
namespace {

constexpr size_t kRecordBytes = 144;
constexpr size_t kFirstRecordBytes = 136;  // Version 1 has no time of the last use.
constexpr uint16_t kFirstVersion = 1;
constexpr uint16_t kHasParent = 1;
// With a life of blocks. A namespace without one has a record of version 1.
constexpr uint16_t kNamespaceRecordVersion = 2;
constexpr uint16_t kDropped = 1;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little-endian");

template <typename T>
void Put(std::string* out, size_t at, T value) {
  std::memcpy(out->data() + at, &value, sizeof(value));
}
template <typename T>
T Get(std::string_view in, size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof(value));
  return value;
}
uint64_t HashOf(std::string_view bytes) { return Xxh3(std::as_bytes(std::span(bytes))); }

// In every version the last eight bytes are the hash of those before them. So a record of another
// version is told from a damaged one.
bool EndsWithItsHash(std::string_view bytes) {
  const size_t body = bytes.size() - sizeof(uint64_t);
  return Get<uint64_t>(bytes, body) == HashOf(bytes.substr(0, body));
}

Digest GetDigest(std::string_view in, size_t at) {
  Digest digest;
  std::memcpy(digest.bytes.data(), in.data() + at, digest.bytes.size());
  return digest;
}

}  // namespace

std::string EncodeRecord(const BlockRecord& record) {
  std::string out(record.used_at ? kRecordBytes : kFirstRecordBytes, '\0');
  Put<uint16_t>(&out, 0, record.used_at ? kRecordVersion : kFirstVersion);
  Put<uint16_t>(&out, 2, record.parent ? kHasParent : 0);
  Put<uint32_t>(&out, 4, record.bytes);
  Put<uint64_t>(&out, 8, record.generation);
  std::memcpy(out.data() + 16, record.fingerprint.bytes.data(), 32);
  std::memcpy(out.data() + 48, record.key.bytes.data(), 32);
  if (record.parent) std::memcpy(out.data() + 80, record.parent->bytes.data(), 32);
  Put<uint16_t>(&out, 112, record.rect.layer_begin);
  Put<uint16_t>(&out, 114, record.rect.layer_end);
  Put<uint16_t>(&out, 116, record.rect.head_begin);
  Put<uint16_t>(&out, 118, record.rect.head_end);
  Put<uint16_t>(&out, 120, record.grid.layer_end);
  Put<uint16_t>(&out, 122, record.grid.head_end);
  Put<float>(&out, 124, record.recompute_seconds);
  if (record.used_at) Put<int64_t>(&out, 128, *record.used_at);
  const size_t body = out.size() - sizeof(uint64_t);
  Put<uint64_t>(&out, body, HashOf(std::string_view(out).substr(0, body)));
  return out;
}

Result<BlockRecord> DecodeRecord(std::string_view bytes) {
  if (bytes.size() < 2 + sizeof(uint64_t)) {
    return Errorf(StatusCode::kDataLoss, "block record: {} bytes", bytes.size());
  }
  if (!EndsWithItsHash(bytes)) {
    return Errorf(StatusCode::kDataLoss, "block record: bytes do not match their checksum");
  }
  const auto version = Get<uint16_t>(bytes, 0);
  if (version != kRecordVersion && version != kFirstVersion) {
    return Errorf(StatusCode::kUnimplemented, "block record: version {}, expected {} or {}",
                  version, kFirstVersion, kRecordVersion);
  }
  const size_t expected = version == kRecordVersion ? kRecordBytes : kFirstRecordBytes;
  if (bytes.size() != expected) {
    return Errorf(StatusCode::kDataLoss, "block record: {} bytes, expected {}", bytes.size(),
                  expected);
  }
  BlockRecord record;
  record.bytes = Get<uint32_t>(bytes, 4);
  record.generation = Get<uint64_t>(bytes, 8);
  record.fingerprint = GetDigest(bytes, 16);
  record.key = GetDigest(bytes, 48);
  if (Get<uint16_t>(bytes, 2) & kHasParent) record.parent = GetDigest(bytes, 80);
  record.rect = {Get<uint16_t>(bytes, 112), Get<uint16_t>(bytes, 114), Get<uint16_t>(bytes, 116),
                 Get<uint16_t>(bytes, 118)};
  record.grid = {0, Get<uint16_t>(bytes, 120), 0, Get<uint16_t>(bytes, 122)};
  record.recompute_seconds = Get<float>(bytes, 124);
  if (!std::isfinite(record.recompute_seconds)) record.recompute_seconds = 0;
  if (version == kRecordVersion) record.used_at = Get<int64_t>(bytes, 128);
  if (record.rect.layer_begin >= record.rect.layer_end ||
      record.rect.layer_end > record.grid.layer_end ||
      record.rect.head_begin >= record.rect.head_end ||
      record.rect.head_end > record.grid.head_end) {
    return Errorf(StatusCode::kDataLoss, "block record: part is not on its grid");
  }
  return record;
}

std::string NamespaceMetaName(const Digest& fingerprint) {
  return std::string(kNamespaceMetaPrefix) + fingerprint.Hex();
}

std::string EncodeNamespaceRecord(const NamespaceRecord& record) {
  std::string out(12, '\0');
  const bool lives = record.block_life.count() > 0;
  Put<uint16_t>(&out, 0, lives ? kNamespaceRecordVersion : kFirstVersion);
  Put<uint16_t>(&out, 2, record.dropped ? kDropped : 0);
  Put<uint64_t>(&out, 4, record.generation);
  if (lives) {
    out.resize(20);
    Put<int64_t>(&out, 12, record.block_life.count());
  }
  out += Encode(record.spec);
  std::string hash(8, '\0');
  Put<uint64_t>(&hash, 0, HashOf(out));
  return out + hash;
}

Result<NamespaceRecord> DecodeNamespaceRecord(std::string_view bytes) {
  if (bytes.size() < 20) {
    return Errorf(StatusCode::kDataLoss, "namespace record: {} bytes", bytes.size());
  }
  if (!EndsWithItsHash(bytes)) {
    return Errorf(StatusCode::kDataLoss, "namespace record: bytes do not match their checksum");
  }
  const auto version = Get<uint16_t>(bytes, 0);
  if (version != kNamespaceRecordVersion && version != kFirstVersion) {
    return Errorf(StatusCode::kUnimplemented, "namespace record: version {}, expected {} or {}",
                  version, kFirstVersion, kNamespaceRecordVersion);
  }
  const std::string_view body = bytes.substr(0, bytes.size() - 8);
  NamespaceRecord record;
  size_t at = 12;
  if (version == kNamespaceRecordVersion) {
    if (body.size() < 20) {
      return Errorf(StatusCode::kDataLoss, "namespace record: {} bytes", bytes.size());
    }
    record.block_life = Duration(Get<int64_t>(bytes, 12));
    if (record.block_life.count() <= 0) {
      return Errorf(StatusCode::kDataLoss, "namespace record: a life of {} ns",
                    record.block_life.count());
    }
    at = 20;
  }
  record.dropped = (Get<uint16_t>(bytes, 2) & kDropped) != 0;
  record.generation = Get<uint64_t>(bytes, 4);
  CAIRN_ASSIGN_OR_RETURN(record.spec, DecodeNamespaceSpec(body.substr(at)));
  return record;
}

}  // namespace cairn::cache
