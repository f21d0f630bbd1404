#pragma once
// Reads header and slices of a block apart, for a fetch that wants few of its layers from a tier
// that reads ranges: first the headers of the parts, which the tier compares with what was written.
// Then come the slices, which are compared with the headers' hashes before they are given out.
//
// The thread that advances a slot calls these; nothing blocks.

#include <cstdint>
#include <memory>
#include <optional>

#include "services/cache/store/engine/buffered_read.h"

namespace cairn::cache {

// Limit for the bytes that are read if header and slices of the wanted layers are read apart.
// nullopt: that is not much less than the whole block, or not possible.
std::optional<uint64_t> ApartBytes(const NamespaceState& ns, const Tier& tier,
                                   const FetchSlot& slot);
// The bytes of the header of such a part, in whole pages. 0: it has none of the wanted layers.
uint64_t HeaderBytesToRead(const FetchSlot& slot, const format::PartRect& rect);
// The headers are here: reads the slices. DATA_LOSS: a header is bad.
Status ReadSlices(const FetchServices& services, const NamespacePtr& ns,
                  const std::shared_ptr<BufferedRead>& headers, FetchSlot& slot);
// Header and slices are here.
void OpenApart(const std::shared_ptr<BufferedRead>& read, FetchSlot& slot);
// Slices that are read from a slower tier again and again cost more than the block once. So when a
// slice is read for the second time under the lease, the block is asked for, behind this read.
void NoteApart(const FetchServices& services, const LeasePtr& lease, const FetchSlot& slot);

}  // namespace cairn::cache
