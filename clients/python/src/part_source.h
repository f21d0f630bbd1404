#pragma once
// The parts of a push, where they lie in memory of Python's objects.

#include <nanobind/nanobind.h>

#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/python/src/memory.h"
#include "services/common/keys/namespace_spec.h"

namespace cairn::python {

// What one part needs until it is committed.
struct PartSource {
  MemoryPieces memory;
  BlockBytes<const std::byte> bytes;
  std::vector<uint64_t> lengths;  // Of its slices.
};

// Destroyed with the GIL held.
struct PushedParts {
  std::vector<client::PartToWrite> rooms;
  std::vector<PartSource> sources;  // One for each of `rooms`.
};

// A sequence of Parts for blocks of this layout, at least one. INVALID_ARGUMENT or TypeError, naming
// the part and its field.
PushedParts ReadParts(nanobind::handle parts, const Layout& layout);

}  // namespace cairn::python
