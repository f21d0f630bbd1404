// Any bytes as the stored record of a namespace: an error, or a namespace that is written again
// with the same meaning and fingerprint, and that recovery can hold whether it is readable or not.
//
// First byte: bit 0 the version and the first bytes of the spec are made right, bit 1 the checksum.
// The rest is the record.

#include <cstring>

#include "services/cache/store/block/record.h"
#include "services/cache/store/block/stored_namespace.h"
#include "tests/fuzz/input.h"

namespace {

constexpr std::string_view kMagic = "cairn.namespace.v1";

}  // namespace

CAIRN_FUZZ_ENTRY(namespace_record)(const uint8_t* data, size_t size) {
  using namespace cairn;
  using fuzz::Expect;
  fuzz::Input input(data, size);
  const uint8_t repair = input.U8();
  std::vector<std::byte> bytes = fuzz::Copy(input.Rest());
  const uint16_t version = (repair & 4) != 0 ? 2 : 1;
  const size_t spec_at = version == 2 ? 20 : 12;
  if ((repair & 1) != 0 && bytes.size() >= spec_at + kMagic.size()) {
    std::memcpy(bytes.data(), &version, sizeof(version));
    std::memcpy(bytes.data() + spec_at, kMagic.data(), kMagic.size());
  }
  if ((repair & 2) != 0) fuzz::RepairHash(&bytes);
  const auto record =
      cache::DecodeNamespaceRecord({reinterpret_cast<char*>(bytes.data()), bytes.size()});
  if (!record.ok()) return 0;
  // A namespace may be written in several ways (layers in groups, recipes), and is stored in one.
  const std::string stored = cache::EncodeNamespaceRecord(*record);
  const auto same = fuzz::Get(cache::DecodeNamespaceRecord(stored));
  Expect(same.block_life == record->block_life);
  Expect(same.generation == record->generation && same.dropped == record->dropped);
  Expect(Fingerprint(same.spec) == Fingerprint(record->spec));
  Expect(Differences(record->spec, same.spec).empty());
  Expect(cache::EncodeNamespaceRecord(same) == stored);
  Expect(Validate(same.spec).ok() == Validate(record->spec).ok());

  const auto held = cache::StoredNamespace::Of(record->spec);
  Expect(held->fingerprint == Fingerprint(record->spec));
  if (held->storage.ok()) Expect(Validate(record->spec).ok());
  return 0;
}
