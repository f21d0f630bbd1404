#pragma once
// glibc's allocator, tuned for buffers of a megabyte that come and go.

#include <malloc.h>

namespace cairn {

// First thing in main, before any thread. By default glibc maps every large buffer anew and returns it at once, so each message pays for
// its page faults: four times the cost of the copy itself. `heap_bytes`: how much freed memory is kept for reuse.
inline void TuneAllocator(int heap_bytes = 256 << 20) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, heap_bytes);
  mallopt(M_TOP_PAD, 16 << 20);
  // Threads of gRPC free what others allocated: many arenas would each keep their own share.
  mallopt(M_ARENA_MAX, 4);
}

}  // namespace cairn
