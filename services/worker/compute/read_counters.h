#pragma once
// The cost and the gain of reading a context by rows.

#include <cstdint>

#include "cairn/common/kv/statistic.h"

namespace cairn::worker {

// clang-format off
// ROW(kind, name, metric, labels, help)
#define CAIRN_READ_STATISTICS(ROW)                                                                 \
  ROW(kTotal, steps, "cairn_worker_read_steps_total", "",                                          \
      "Steps that decoded over a context by rows.")                                                \
  ROW(kTotal, chosen_rows, "cairn_worker_read_rows_total", "result=chosen",                        \
      "Rows that steps wanted exactly: hit, gathered in time or late.")                            \
  ROW(kTotal, hit_rows, "cairn_worker_read_rows_total", "result=hit",                              \
      "Chosen rows that were near already.")                                                       \
  ROW(kTotal, late_rows, "cairn_worker_read_rows_total", "result=late",                            \
      "Chosen rows that were not there when attention read them.")                                 \
  ROW(kTotal, useless_rows, "cairn_worker_read_rows_total", "result=useless",                      \
      "Rows that were gathered, but left before a step had read them.")                            \
  ROW(kTotal, lost_rows, "cairn_worker_read_rows_total", "result=lost",                            \
      "Rows that the far tier could not bring.")                                                   \
  ROW(kTotal, read_bytes, "cairn_worker_read_bytes_total", "",                                     \
      "Bytes that were read of contexts by rows.")                                                 \
  ROW(kTotal, fetched_indexes, "cairn_worker_read_indexes_total", "result=fetched",                \
      "Contexts whose index was at the cache node.")                                               \
  ROW(kTotal, stored_indexes, "cairn_worker_read_indexes_total", "result=stored",                  \
      "Contexts whose index was made and given to the cache node.")
// clang-format on

// Rows are rows of one layer and KV head.
struct ReadCounters {
  CAIRN_READ_STATISTICS(CAIRN_STATISTIC_FIELD)

  ReadCounters& operator+=(const ReadCounters& other) {
    CAIRN_READ_STATISTICS(CAIRN_STATISTIC_ADD)
    return *this;
  }
};

// Calls f(const Statistic&, value) for each row of the table, in its order.
template <typename Visitor>
void ForEachStatistic(const ReadCounters& stats, Visitor&& f) {
  CAIRN_READ_STATISTICS(CAIRN_STATISTIC_VISIT)
}

}  // namespace cairn::worker
