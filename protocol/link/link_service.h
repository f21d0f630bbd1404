#pragma once
// The service Link, for any process that has a LinkHolder.

#include <functional>
#include <memory>
#include <string>

#include "common/link/link_holder.h"
#include "common/rpc/call_server.h"
#include "common/rpc/context.h"

namespace cairn::rpc {
class Call;
}

namespace cairn::link {

// The name of the caller, given the name that the call claims. PERMISSION_DENIED: the certificate
// of the caller does not fit. Any thread.
using CallerRule =
    std::function<Result<std::string>(const rpc::Call& call, const std::string& claimed)>;

// Adds the service before the server starts. `rpc` outlives the server.
void AddLinkService(rpc::CallServer* server, const rpc::Context* rpc,
                    std::shared_ptr<LinkHolder> holder, CallerRule rule);

}  // namespace cairn::link
