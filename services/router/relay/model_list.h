#pragma once
// The answer of an engine to GET /v1/models.

#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "services/router/registry/worker_link.h"

namespace cairn::router {

// INVALID_ARGUMENT: it is no such list. Models beyond the first 1,024 are ignored.
Result<std::vector<EngineModel>> ParseModelList(std::string_view body);

}  // namespace cairn::router
