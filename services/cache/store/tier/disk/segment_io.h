#pragma once
// Reads and writes of extents in segments, whose caller waits for the device.

#include <cstddef>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "services/cache/store/tier/disk/extent_table.h"
#include "services/cache/store/tier/disk/full_io.h"
#include "services/cache/store/tier/disk/io_backend.h"
#include "services/cache/store/tier/disk/segment_files.h"

namespace cairn::cache::disk {

inline uint64_t OffsetOf(const Place& place) { return uint64_t{place.page} * kPageBytes; }

struct SegmentIo {
  const IoLanes& lanes;
  SegmentFiles& files;
  const Clock& clock;

  // Each into the buffer of its number, which is made here, and has no memory if the bytes could
  // not be read. DATA_LOSS: they could not, or their hash is wrong.
  std::vector<Status> Read(std::span<const Resident> residents,
                           std::vector<PageBuffer>* buffers) const;
  // Each where it is placed, from the buffer of its number.
  std::vector<Status> Write(std::span<const PlacedExtent> placed,
                            std::span<const PageBuffer* const> buffers) const;
};

}  // namespace cairn::cache::disk
