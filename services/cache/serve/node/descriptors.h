#pragma once
// File descriptors of the process: connections, value files and the database share them.

#include "cairn/common/status.h"

namespace cairn::cache {

// FAILED_PRECONDITION: the hard limit is too low for a node. Changes nothing.
Status CheckDescriptorLimit();

// Raises the soft limit to the hard one. FAILED_PRECONDITION: the hard limit is too low for a node.
// Call it before the tiers are opened, because the disk tier takes a part of the limit.
Status RaiseDescriptorLimit();

}  // namespace cairn::cache
