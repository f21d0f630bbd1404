#include "services/worker/compute/device/decode_graphs.h"

#include <algorithm>
#include <bit>

#include "common/log/log.h"

namespace cairn::worker {

int64_t DecodeGraphs::SplitsFor(int64_t splits) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(splits, 1))));
}

DecodeGraphs::Entry& DecodeGraphs::Find(const Shape& shape, bool* known) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.shape == shape; });
  *known = found != entries_.end();
  if (*known) {
    entries_.splice(entries_.begin(), entries_, found);
  } else {
    entries_.push_front({.shape = shape, .graph = {}});
    if (entries_.size() > kMost) entries_.pop_back();
  }
  return entries_.front();
}

Status DecodeGraphs::Run(const Shape& shape, uint64_t addresses, device::Stream* stream,
                         const std::function<Status()>& launch) {
  if (!enabled_) return launch();
  if (addresses != addresses_) entries_.clear();
  addresses_ = addresses;
  bool known = false;
  Entry& entry = Find(shape, &known);
  if (!known) return launch();
  if (!entry.graph) {
    Result<device::Graph> graph = stream->Capture(launch);
    if (!graph.ok()) {
      CAIRN_RETURN_IF_ERROR(stream->device()->LossStatus());
      enabled_ = false;
      entries_.clear();
      failures_.fetch_add(1, std::memory_order_relaxed);
      log::Warn("decode_graphs_off", {{"reason", ToString(graph.status())}});
      return launch();
    }
    entry.graph = *std::move(graph);
    noted_.fetch_add(1, std::memory_order_relaxed);
  }
  CAIRN_RETURN_IF_ERROR(stream->Launch(entry.graph));
  launches_.fetch_add(1, std::memory_order_relaxed);
  return OkStatus();
}

Transformer::GraphStats DecodeGraphs::GetStats() const {
  return {.noted = noted_.load(std::memory_order_relaxed),
          .launches = launches_.load(std::memory_order_relaxed),
          .failures = failures_.load(std::memory_order_relaxed)};
}

}  // namespace cairn::worker
