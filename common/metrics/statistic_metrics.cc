#include "common/metrics/statistic_metrics.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cairn::metrics {
namespace {

std::string HelpOf(const Statistic& row, std::span<const SharedHelp> shared) {
  const auto found = std::ranges::find(shared, row.metric, &SharedHelp::metric);
  return std::string(found == shared.end() ? row.help : found->help);
}

// "src=client,dst=host"
Labels LabelsOf(const Statistic& row) {
  Labels labels;
  for (std::string_view rest = row.labels; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    const size_t equals = pair.find('=');
    labels.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
  }
  return labels;
}

}  // namespace

void Show(const Statistic& row, std::span<const SharedHelp> shared, Labels labels, double value,
          Sink& sink) {
  if (row.metric.empty()) return;
  for (auto& label : LabelsOf(row)) labels.push_back(std::move(label));
  const std::string metric(row.metric);
  if (row.kind == StatisticKind::kNow || row.kind == StatisticKind::kRate) {
    sink.Gauge(metric, HelpOf(row, shared), labels, value);
  } else {
    sink.Counter(metric, HelpOf(row, shared), labels, value);
  }
}

}  // namespace cairn::metrics
