#pragma once
// Copies that should not push the destination through the caches.

#include <cstddef>
#include <string_view>

namespace cairn::cache {

// memcpy for a large destination that the CPU does not read soon: from 64 KiB on with non-temporal stores, AVX-512 or AVX2 as the
// machine has them (2 x memcpy from DRAM to DRAM). Below, and elsewhere, memcpy. The stores are ordered before the return.
// A destination that is read at once is better off with memcpy. Ranges do not overlap.
void BulkCopy(void* destination, const void* source, size_t bytes);

// What BulkCopy uses here: "avx512", "avx2", "memcpy".
std::string_view BulkCopyKind();

}  // namespace cairn::cache
