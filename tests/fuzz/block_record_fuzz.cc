// Any bytes as the record of a part: an error, or a record on its grid that is written again with
// the same meaning.
//
// First byte: bit 0 the version is made right, bit 1 the checksum. The rest is the record.

#include <cmath>
#include <cstring>

#include "services/cache/store/block/record.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(block_record)(const uint8_t* data, size_t size) {
  using namespace cairn;
  using fuzz::Expect;
  fuzz::Input input(data, size);
  const uint8_t repair = input.U8();
  std::vector<std::byte> bytes = fuzz::Copy(input.Rest());
  if ((repair & 1) != 0 && bytes.size() >= 2) {
    const uint16_t version = (repair & 4) != 0 ? 1 : cache::kRecordVersion;
    std::memcpy(bytes.data(), &version, sizeof(version));
  }
  if ((repair & 2) != 0) fuzz::RepairHash(&bytes);
  const auto record = cache::DecodeRecord({reinterpret_cast<char*>(bytes.data()), bytes.size()});
  if (!record.ok()) return 0;
  const format::PartRect& rect = record->rect;
  Expect(rect.layer_begin < rect.layer_end && rect.layer_end <= record->grid.layer_end);
  Expect(rect.head_begin < rect.head_end && rect.head_end <= record->grid.head_end);
  Expect(record->grid.layer_begin == 0 && record->grid.head_begin == 0);
  Expect(std::isfinite(record->recompute_seconds));
  const std::string again = cache::EncodeRecord(*record);
  const auto same = fuzz::Get(cache::DecodeRecord(again));
  Expect(same.fingerprint == record->fingerprint && same.generation == record->generation);
  Expect(same.key == record->key && same.parent == record->parent);
  Expect(same.used_at == record->used_at);
  Expect(same.rect == rect && same.grid == record->grid && same.bytes == record->bytes);
  Expect(cache::EncodeRecord(same) == again);
  return 0;
}
