#pragma once
// Checks the fields of a request that need no tokens, as the worker would.

#include <optional>

#include "cairn/common/clock.h"
#include "services/router/engine/router.h"

namespace cairn::router {

// Memory of `tokens` tokens of a prompt, and of the keys of their blocks.
uint64_t TokenBytes(size_t tokens);

// INVALID_ARGUMENT of `field`: "field 'NAME': `what`".
GenerateError FieldError(std::string field, const std::string& what);

// The error of a prompt of which no tokens can be made: the status with the field's name.
// OUT_OF_RANGE: it is too long for the context.
GenerateError PromptError(const GenerateRequest& request, const Status& status);
// UNAVAILABLE: there is no memory for `what` of the prompt, as ByteShare::Charge said.
GenerateError NoRoomFor(const std::string& what, const Status& room);

// nullopt: nothing is wrong.
std::optional<GenerateError> CheckRequest(const GenerateRequest& request, TimePoint now);

}  // namespace cairn::router
