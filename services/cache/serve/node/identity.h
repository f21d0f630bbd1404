#pragma once
// The node's epoch: grows with each start.

#include <cstdint>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cache {

// Returns the next epoch: milliseconds since 1970, but always more than the last one in the file
// `directory`/epoch. Writes it to that file before it returns. Empty directory: only the clock
// counts. FAILED_PRECONDITION: the file cannot be written, or has no number that has a successor.
Result<uint64_t> NextEpoch(const std::string& directory);

}  // namespace cairn::cache
