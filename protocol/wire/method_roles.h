#pragma once
// The role that each method of proto/cairn/v1 asks for, in one table.

#include <optional>
#include <string_view>

#include "common/auth/role.h"

namespace cairn::wire {

// `path`: "/cairn.v1.Cache/Match". nullopt: no method of ours. The caller needs the role for a
// tenant; which one depends on the request, and the method's code checks that. Any thread.
std::optional<auth::Role> RoleOf(std::string_view path);

}  // namespace cairn::wire
