#pragma once
// Reads header and slices of a block apart, for a fetch that wants few of its layers from a tier
// that reads ranges: first the headers of the parts, which the tier compares with what was written.
// Then come the slices, which are compared with the headers' hashes before they are given out.
//
// The lease remembers headers, and the hashes of the pages of slices that were compared
// (lease/known_parts.h). So the next read of the block reads no header, and if a fetch wants rows
// of a slice that was read before, it reads the pages that have them.
//
// The thread that advances a slot calls these; nothing blocks.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "services/cache/store/engine/buffered_read.h"

namespace cairn::cache {

// Limit for the bytes that are read if header and slices of the wanted layers are read apart.
// nullopt: that is not much less than the whole block, or not possible.
std::optional<uint64_t> ApartBytes(const NamespaceState& ns, const Tier& tier,
                                   const FetchSlot& slot);
// The bytes of the header of such a part, in whole pages. 0: it has none of the wanted layers.
uint64_t HeaderBytesToRead(const FetchSlot& slot, const format::PartRect& rect);
// The slices to read, or pages of them, of a block whose headers the lease knows. nullopt: it does
// not, or there is nothing to read.
std::optional<std::vector<BufferedRead::Stretch>> KnownSlices(const LeasePtr& lease,
                                                              const FetchSlot& slot);
// The headers are here: the lease gets to know them, and the slices are read. DATA_LOSS: a header
// is bad.
Status ReadSlices(const FetchServices& services, const LeasePtr& lease,
                  const std::shared_ptr<BufferedRead>& headers, FetchSlot& slot);
// A part was read whole, because the tier could not tell its header yet: the lease gets to know its
// header and its pages, so that no byte of it is read twice for rows. Any thread. `bytes`: of the
// whole part.
void LearnPart(const LeasePtr& lease, TierKind tier, const PartPlace& place,
               std::span<const std::byte> bytes, MemoryAccount* account);
// Header and slices are here.
void OpenApart(const std::shared_ptr<BufferedRead>& read, FetchSlot& slot);
// Slices that are read from a slower tier again and again cost more than the block once. So when a
// slice is read for the second time under the lease, the block is asked for, behind this read.
void NoteApart(const FetchServices& services, const LeasePtr& lease, const FetchSlot& slot);

}  // namespace cairn::cache
