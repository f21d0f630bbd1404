#pragma once
// auth.policy of a process that serves gRPC.

#include <memory>
#include <string>

#include "common/auth/access.h"
#include "common/config/config.h"
#include "common/metrics/metrics.h"
#include "common/net/tls.h"

namespace cairn::service {

// `path` outlives the schema.
void RegisterPolicy(std::string* path, config::Schema* schema);

// Whether the file can be used, and whether callers can prove who they are: with certificates, over
// `listen`. No path: it is right. INVALID_ARGUMENT, FAILED_PRECONDITION: name the setting.
Status CheckPolicy(const std::string& path, const net::TlsOptions& tls, const std::string& listen);

// nullptr without a path: the log says so. Otherwise the state of the policy is exported, and the
// caller calls Look now and then. It must outlive the registry's collectors.
Result<std::unique_ptr<auth::Access>> OpenPolicy(const std::string& path, const Clock* clock,
                                                 metrics::Registry* registry);

}  // namespace cairn::service
