#pragma once
// The node's epoch: grows with each start.

#include <cstdint>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cache {

// The next epoch: milliseconds since 1970, and more than the last one noted in `directory`/epoch,
// where it is noted before this returns. Empty directory: the clock alone.
Result<uint64_t> NextEpoch(const std::string& directory);

}  // namespace cairn::cache
