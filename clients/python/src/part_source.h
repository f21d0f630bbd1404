#pragma once
// The parts of a push, where they lie in memory of Python's objects.

#include <nanobind/nanobind.h>

#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/namespace_spec.h"
#include "clients/python/src/memory.h"
#include "clients/python/src/sealing.h"

namespace cairn::python {

// One of each for a part. Destroyed with the GIL held, when the parts are committed.
struct PushedParts {
  std::vector<client::PartToWrite> rooms;
  std::vector<PartContent> contents;
  std::vector<MemoryPieces> memory;  // Where the contents lie.
};

// A sequence of Parts for blocks of this layout, at least one. INVALID_ARGUMENT or TypeError,
// naming the part and its field.
PushedParts ReadParts(nanobind::handle parts, const Layout& layout);

}  // namespace cairn::python
