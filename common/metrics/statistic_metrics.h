#pragma once
// Shows the rows of tables of statistics (cairn/common/kv/statistic.h) as metrics.

#include <span>
#include <string_view>

#include "cairn/common/kv/statistic.h"
#include "common/metrics/metrics.h"

namespace cairn::metrics {

// The help text of a metric that several rows share, apart by a label.
struct SharedHelp {
  std::string_view metric;
  std::string_view help;
};

// Shows one row: a gauge if it is a present value, else a counter. Rows without a metric are not
// shown. `labels`: in addition to the row's own.
void Show(const Statistic& row, std::span<const SharedHelp> shared, Labels labels, double value,
          Sink& sink);

}  // namespace cairn::metrics
