#pragma once
// The record that a member writes about itself: a JSON object, so that an operator can read it with
// etcdctl.
//
//   {"address":"10.0.0.7:7072","epoch":12,"host":"rack3-7","id":"node-7","incarnation":"81a0...",
//    "zone":"b"}
//
// A process that ends in order writes it once more with "leaving":true, so that the others need not
// wait for it.

#include <string>
#include <string_view>

#include "common/membership/discovery.h"

namespace cairn::membership {

inline constexpr size_t kMaxMemberRecordBytes = 4096;

std::string EncodeMember(const Member& member, bool leaving = false);
// Fields that it does not know are skipped, so that newer versions may add some. INVALID_ARGUMENT:
// larger than kMaxMemberRecordBytes, no JSON object, or a field is missing or malformed; it names
// the field.
Result<Member> DecodeMember(std::string_view text);
// Whether a record says that its process leaves. Those of older versions never do.
bool SaysLeaving(std::string_view text);

}  // namespace cairn::membership
