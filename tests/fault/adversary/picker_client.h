#pragma once
// What a gateway sends to a picker, and what it reads of the answer.

#include <string>
#include <utility>
#include <vector>

#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"

namespace cairn::fault {

namespace ext_proc = ::envoy::service::ext_proc::v3;

// POST `path`, with these headers too. A body follows.
ext_proc::ProcessingRequest PickHead(
    const std::string& path, const std::vector<std::pair<std::string, std::string>>& headers);
ext_proc::ProcessingRequest PickBody(const std::string& body, bool end);
// The endpoint that the reply names. Empty: none.
std::string EndpointIn(const ext_proc::ProcessingResponse& reply);

}  // namespace cairn::fault
