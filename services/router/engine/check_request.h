#pragma once
// Checks the fields of a request that need no tokens, as the worker would.

#include <optional>

#include "cairn/common/clock.h"
#include "services/router/engine/router.h"

namespace cairn::router {

// Memory of the prompt, as it came.
uint64_t PromptBytes(const GenerateRequest& request);
// Memory of so many tokens of a prompt, and of the keys of their blocks.
uint64_t TokenBytes(size_t tokens);

// INVALID_ARGUMENT of `field`: "field 'NAME': `what`".
GenerateError FieldError(std::string field, const std::string& what);

// nullopt: nothing is wrong.
std::optional<GenerateError> CheckRequest(const GenerateRequest& request, TimePoint now);

}  // namespace cairn::router
