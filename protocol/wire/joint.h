#pragma once
// Converts between the messages of a match over several pools and plain C++.

#include <cstdint>

#include "cairn/common/kv/joint_match.h"
#include "cairn/common/status.h"
#include "cairn/v1/cache.pb.h"

namespace cairn::wire {

void ToProto(const JointQuestion& question, v1::JointQuestion* out);
// INVALID_ARGUMENT: more pools than a layout can have. CheckQuestion checks the rest.
Result<JointQuestion> FromProto(const v1::JointQuestion& proto);

void ToProto(const JointAnswer& answer, v1::JointAnswer* out);
// The answer of a node to `question`, which leased `blocks` blocks. INTERNAL: it contradicts the
// question or the lease.
Result<JointAnswer> FromProto(const v1::JointAnswer& proto, const JointQuestion& question,
                              uint32_t blocks);

}  // namespace cairn::wire
