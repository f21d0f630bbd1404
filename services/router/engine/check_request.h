#pragma once
// Checks the fields of a request that need no tokens, as the worker would.

#include <optional>

#include "cairn/common/clock.h"
#include "services/router/engine/router.h"

namespace cairn::router {

// INVALID_ARGUMENT of `field`: "field 'NAME': `what`".
GenerateError FieldError(std::string field, const std::string& what);

// nullopt: nothing is wrong.
std::optional<GenerateError> CheckRequest(const GenerateRequest& request, TimePoint now);

}  // namespace cairn::router
