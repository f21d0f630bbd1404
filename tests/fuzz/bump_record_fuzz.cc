// Any bytes as a stored record of bumps: an error, or bumps that are written again as they were.
//
// First byte: bit 0 the version is made right, bit 1 the checksum. The rest is the record.

#include <cstring>

#include "services/cache/store/state/bump_record.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(bump_record)(const uint8_t* data, size_t size) {
  using namespace cairn;
  using fuzz::Expect;
  fuzz::Input input(data, size);
  const uint8_t repair = input.U8();
  std::vector<std::byte> bytes = fuzz::Copy(input.Rest());
  if ((repair & 1) != 0 && bytes.size() >= 2) {
    const uint16_t version = 1;
    std::memcpy(bytes.data(), &version, sizeof(version));
  }
  if ((repair & 2) != 0) fuzz::RepairHash(&bytes);
  const std::string_view record(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto bumps = cache::DecodeBumps(record);
  if (bumps.ok()) {
    Expect(bumps->size() * sizeof(cache::Bump) + 16 == bytes.size());
    Expect(fuzz::Get(cache::DecodeBumps(cache::EncodeBumps(*bumps))) == *bumps);
  }
  const auto sequence = cache::BumpSequenceOf(record);
  if (sequence) Expect(cache::BumpSequenceOf(cache::BumpMetaName(*sequence)) == sequence);
  return 0;
}
