#pragma once
// Names that a tenant may have.

#include <string_view>

#include "cairn/common/status.h"

namespace cairn {

// INVALID_ARGUMENT: not 1 to 128 characters of [A-Za-z0-9._-].
Status CheckTenant(std::string_view tenant);

}  // namespace cairn
