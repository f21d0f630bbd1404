#pragma once
// Counters of the same-node path. The server's thread writes them. The atomics are relaxed.

#include <atomic>
#include <cstdint>

namespace cairn::cache {

struct LocalStats {
  std::atomic<uint64_t> sessions{0};              // Open now.
  std::atomic<uint64_t> opened_sessions{0};       // Totals since start:
  std::atomic<uint64_t> refused_sessions{0};      // Wrong user, token, or message; too many.
  std::atomic<uint64_t> broken_sessions{0};       // Ended because of what they wrote.
  std::atomic<uint64_t> descriptors{0};           // Served.
  std::atomic<uint64_t> rejected_descriptors{0};  // Malformed, or of another tenant.
  std::atomic<uint64_t> read_bytes{0};            // The bytes of places that were told.
  std::atomic<uint64_t> written_bytes{0};         // Committed.
  std::atomic<uint64_t> held_bytes{0};            // Leased and reserved now.
  std::atomic<uint64_t> shared_segments{0};       // Descriptors handed out, since start.
  std::atomic<uint64_t> shared_chunks{0};         // The same of chunks of GPUs.
  std::atomic<uint64_t> failed_accepts{0};  // No descriptor or memory for one; tried again later.

  static void Add(std::atomic<uint64_t>& counter, uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }
  static void Sub(std::atomic<uint64_t>& counter, uint64_t by = 1) {
    counter.fetch_sub(by, std::memory_order_relaxed);
  }
};

}  // namespace cairn::cache
