#pragma once
// The blocks that a flush waits for, and how long. A value: no thread-safety of its own.

#include <functional>

#include "cairn/common/clock.h"

namespace cairn::cache {

struct FlushRequest {
  TimePoint deadline{};  // The deadline on the node's clock.
  // The node ends: blocks are copied past the write budget and the high-water mark.
  bool last = false;
  // Asked some times a second. True: nobody waits any more.
  std::function<bool()> cancelled = nullptr;
};

}  // namespace cairn::cache
