#pragma once
// Names of what a node hands out.

#include <cstdint>

#include "cairn/common/hash.h"

namespace cairn::cache {

using SessionId = uint64_t;  // Internal; the network form is an unguessable token.
using LeaseId = uint64_t;
using ReservationId = uint64_t;
using Fingerprint = Digest;

}  // namespace cairn::cache
