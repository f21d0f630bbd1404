#pragma once
// Messages of proto/cairn/v1/link.proto to and from common/link/messages.h.

#include <string>

#include "cairn/v1/link.pb.h"
#include "common/link/messages.h"

namespace cairn::link {

// To the wire: always possible. From it: INVALID_ARGUMENT, which names the field; what is accepted
// also passes Check.
void ToProto(const OpenRequest& request, const std::string& reader, v1::LinkOpenRequest* out);
Result<OpenRequest> FromProto(const v1::LinkOpenRequest& proto);
void ToProto(const OpenAnswer& answer, v1::LinkOpenResponse* out);
Result<OpenAnswer> FromProto(const v1::LinkOpenResponse& proto);
void ToProto(const MoveRequest& request, const std::string& reader, v1::LinkMoveRequest* out);
Result<MoveRequest> FromProto(const v1::LinkMoveRequest& proto);
// The process that calls. The transport may know better.
Status CheckReader(const std::string& reader);

}  // namespace cairn::link
