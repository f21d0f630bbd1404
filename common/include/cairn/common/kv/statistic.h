#pragma once
// Tables of statistics. Each statistic is declared once, by a row, and everything that must know
// all of them is made from the rows. A table is a macro that gets another macro for its rows:
//
//   #define CAIRN_SOME_STATISTICS(ROW)
//     ROW(kCounted, found_blocks, "cairn_found_blocks_total", "", "Blocks that were found.")
//
//   struct SomeStats {
//     CAIRN_SOME_STATISTICS(CAIRN_STATISTIC_FIELD)
//     SomeStats& operator+=(const SomeStats& other) {
//       CAIRN_SOME_STATISTICS(CAIRN_STATISTIC_ADD)
//       return *this;
//     }
//   };
//   template <typename Visitor>
//   void ForEachStatistic(const SomeStats& stats, Visitor&& f) {
//     CAIRN_SOME_STATISTICS(CAIRN_STATISTIC_VISIT)
//   }

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace cairn {

enum class StatisticKind : uint8_t {
  kNow,             // The present value.
  kRate,            // The present value, with a fraction.
  kTotal,           // A sum since start that is put together when somebody asks.
  kCounted,         // A sum since start, counted where it happens.
  kCountedSeconds,  // As kCounted: seconds, counted in nanoseconds.
};

// The entry of a table for one statistic.
struct Statistic {
  StatisticKind kind = StatisticKind::kNow;
  std::string_view name;    // The name of the field, also in the protocol and in Python.
  std::string_view metric;  // "": none shows just this number.
  std::string_view labels;  // The labels of the metric: "src=client,dst=host", or "".
  std::string_view help;
};

template <StatisticKind kKind>
using StatisticValue =
    std::conditional_t<kKind == StatisticKind::kRate || kKind == StatisticKind::kCountedSeconds,
                       double, uint64_t>;

#define CAIRN_STATISTIC_FIELD(kind, name, ...) StatisticValue<StatisticKind::kind> name = 0;
// Calls f(row, field of `stats`).
#define CAIRN_STATISTIC_VISIT(kind, name, metric, labels, help) \
  f(Statistic{StatisticKind::kind, #name, metric, labels, help}, stats.name);
// Adds the field of `other`.
#define CAIRN_STATISTIC_ADD(kind, name, ...) name += other.name;

}  // namespace cairn
