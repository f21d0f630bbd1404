#pragma once
// Roles of callers.

#include <cstdint>
#include <string_view>

namespace cairn::auth {

// A role includes those that its line names.
enum class Role : uint8_t {
  kReader,    // Finds and fetches blocks.
  kWriter,    // Stores blocks. A reader.
  kOperator,  // Looks at namespaces and members.
  kAdmin,     // Drops blocks, drains processes. An operator.
  kPeer,      // Speaks as a member of the cluster: it has blocks of all tenants.
  kAny,       // Looks at what is no tenant's. Every role includes it, and nobody is given it alone.
};
inline constexpr std::string_view kRoleNames[] = {"reader", "writer", "operator", "admin", "peer"};

constexpr std::string_view ToString(Role role) {
  return role == Role::kAny ? "any" : kRoleNames[static_cast<size_t>(role)];
}

constexpr bool Includes(Role held, Role needed) {
  return held == needed || needed == Role::kAny ||
         (held == Role::kWriter && needed == Role::kReader) ||
         (held == Role::kAdmin && needed == Role::kOperator);
}

}  // namespace cairn::auth
