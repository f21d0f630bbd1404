#include "services/cache/store/tier/disk/stored_extent.h"

#include <cstring>
#include <span>

#include "cairn/common/hash.h"

namespace cairn::cache::disk {
namespace {

constexpr size_t kHeadBytes = 32;
constexpr size_t kHashBytes = 8;

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

template <typename T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The hash of the id and the value: a record under another's key is as wrong as a damaged one.
uint64_t RecordHash(uint64_t id, std::string_view value) {
  std::string whole;
  Append(&whole, id);
  whole.append(value);
  return Xxh3(std::as_bytes(std::span(whole)));
}

// segment u32, page u32, length u32, record bytes u32, order u64, hash u64, record, XXH3 of id and
// all of it.
}  // namespace

std::string EncodeExtent(const StoredExtent& extent) {
  std::string value;
  value.reserve(kHeadBytes + extent.record.size() + kHashBytes);
  Append(&value, extent.place.segment);
  Append(&value, extent.place.page);
  Append(&value, extent.length);
  Append(&value, static_cast<uint32_t>(extent.record.size()));
  Append(&value, extent.order);
  Append(&value, extent.hash);
  value.append(extent.record);
  Append(&value, RecordHash(extent.id, value));
  return value;
}

bool DecodeExtent(uint64_t id, std::string_view value, StoredExtent* extent) {
  if (value.size() < kHeadBytes + kHashBytes) return false;
  const std::string_view hashed = value.substr(0, value.size() - kHashBytes);
  if (RecordHash(id, hashed) != Load<uint64_t>(value.data() + hashed.size())) return false;
  if (Load<uint32_t>(value.data() + 12) != hashed.size() - kHeadBytes) return false;
  *extent = {.id = id,
             .place = {Load<uint32_t>(value.data()), Load<uint32_t>(value.data() + 4)},
             .length = Load<uint32_t>(value.data() + 8),
             .order = Load<uint64_t>(value.data() + 16),
             .hash = Load<uint64_t>(value.data() + 24),
             .record = hashed.substr(kHeadBytes)};
  return true;
}

}  // namespace cairn::cache::disk
