#pragma once
// The cost and the gain of reading a context by rows.

#include <cstdint>

namespace cairn::worker {

// Rows are rows of one layer and KV head.
struct ReadCounters {
  uint64_t steps = 0;
  uint64_t chosen_rows = 0;   // Rows that steps wanted exactly: hit, gathered in time or late.
  uint64_t hit_rows = 0;      // They were near already.
  uint64_t late_rows = 0;     // Not there when attention read them.
  uint64_t useless_rows = 0;  // Gathered, but they left before a step had read them.
  uint64_t lost_rows = 0;     // The far tier could not bring them.
  uint64_t read_bytes = 0;    // From the far tier.
  // Contexts whose index was at the cache node, and those whose index was made and given to it.
  uint64_t fetched_indexes = 0;
  uint64_t stored_indexes = 0;

  ReadCounters& operator+=(const ReadCounters& other) {
    steps += other.steps;
    chosen_rows += other.chosen_rows;
    hit_rows += other.hit_rows;
    late_rows += other.late_rows;
    useless_rows += other.useless_rows;
    lost_rows += other.lost_rows;
    read_bytes += other.read_bytes;
    fetched_indexes += other.fetched_indexes;
    stored_indexes += other.stored_indexes;
    return *this;
  }
};

}  // namespace cairn::worker
