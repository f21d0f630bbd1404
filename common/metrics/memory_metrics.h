#pragma once
// The account of a process's memory, as metrics.

#include <string>

#include "common/memory/memory_account.h"
#include "common/metrics/metrics.h"

namespace cairn::metrics {

// Exports each item that a setting bounds. `prefix`: "cairn_memory".
template <typename Item>
void ExportMemory(const MemoryAccountOf<Item>& account, const std::string& prefix, Sink& sink) {
  for (size_t i = 0; i < MemoryAccountOf<Item>::kItems; ++i) {
    const auto item = static_cast<Item>(i);
    const MemoryItemText& text = MemoryAccountOf<Item>::TextOf(item);
    if (text.setting.empty()) continue;
    const Labels labels = {{"item", std::string(text.name)}};
    sink.Gauge(prefix + "_used_bytes", "Memory in use, by what it is for.", labels,
               Number(account.used(item)));
    sink.Gauge(prefix + "_bound_bytes", "Most memory that may be used, by what it is for.", labels,
               Number(account.bound(item)));
    sink.Counter(prefix + "_refusals_total",
                 "Requests that were refused because they needed memory beyond the bound.", labels,
                 Number(account.refusals(item)));
  }
}

}  // namespace cairn::metrics
