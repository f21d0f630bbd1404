// Any bytes as what a member wrote about itself into etcd: an error, or a member that is written
// again with the same meaning.

#include "common/membership/etcd/member_record.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(member_record)(const uint8_t* data, size_t size) {
  using namespace cairn;
  using fuzz::Expect;
  const std::vector<std::byte> bytes = fuzz::Copy(fuzz::Text(data, size));
  const auto member =
      membership::DecodeMember({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  (void)membership::SaysLeaving({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!member.ok()) return 0;
  Expect(size <= membership::kMaxMemberRecordBytes);
  Expect(!member->id.empty() && !member->address.empty());
  const std::string written = membership::EncodeMember(*member);
  const auto again = membership::DecodeMember(written);
  // Escapes may make it longer than a record may be.
  if (written.size() <= membership::kMaxMemberRecordBytes) {
    Expect(fuzz::Get(again) == *member);
  } else {
    Expect(!again.ok());
  }
  return 0;
}
