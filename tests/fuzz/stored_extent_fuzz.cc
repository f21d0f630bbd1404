// A value of the disk tier's database: refused, or an extent that is written as the same bytes.
// The value of one extent is refused under another's id.
//
// First byte: bit 0 the hash is repaired. Then the id in 8 bytes, and the value.

#include "services/cache/store/tier/disk/stored_extent.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using namespace cairn::cache::disk;
using fuzz::Expect;

// Makes the last eight bytes the hash of the id and all before them.
void Repair(uint64_t id, std::string* value) {
  if (value->size() < sizeof(uint64_t)) return;
  std::string hashed(reinterpret_cast<const char*>(&id), sizeof(id));
  hashed.append(*value, 0, value->size() - sizeof(uint64_t));
  const uint64_t hash = Xxh3(std::as_bytes(std::span(hashed)));
  std::memcpy(value->data() + value->size() - sizeof(hash), &hash, sizeof(hash));
}

}  // namespace

CAIRN_FUZZ_ENTRY(stored_extent)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool repair = (input.U8() & 1) != 0;
  const uint64_t id = input.U32() | uint64_t{input.U32()} << 32;
  std::string text(input.Rest());
  if (repair) Repair(id, &text);
  const std::vector<char> value(text.begin(), text.end());  // A copy of exactly its size.
  const std::string_view view(value.data(), value.size());
  StoredExtent extent;
  if (!DecodeExtent(id, view, &extent)) {
    Expect(extent.id == 0 && extent.record.empty());
    return 0;
  }
  Expect(extent.id == id);
  Expect(extent.record.size() < view.size());
  Expect(EncodeExtent(extent) == view);
  StoredExtent other;
  Expect(!DecodeExtent(id + 1, view, &other));
  return 0;
}
