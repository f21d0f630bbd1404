#pragma once
// Names of what a node hands out.

#include <cstdint>
#include <string_view>

#include "cairn/common/hash.h"

namespace cairn::cache {

using SessionId = uint64_t;  // Internal; the network form is an unguessable token.
using LeaseId = uint64_t;
using ReservationId = uint64_t;
using Fingerprint = Digest;

// In place of a session's tenant. No tenant can have this name (CheckTenant).
inline constexpr std::string_view kNoTenant = "*none";

}  // namespace cairn::cache
