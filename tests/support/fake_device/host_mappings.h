#pragma once
// The pages that the kernel has mapped at an address of this process: a driver that pinned the
// pages would not notice that others lie there by now.

#include <cstdint>
#include <string>

namespace cairn::device::fake {

// The file behind the mapping, as "device:inode offset", or "" where nothing is mapped. Anonymous
// memory has one identity for all mappings.
std::string MappingAt(uint64_t address);
// Whether the process may write there.
bool IsWritable(uint64_t address);

}  // namespace cairn::device::fake
