#include "tools/cairn/top/snapshot.h"

#include <algorithm>

namespace cairn::cli {

std::optional<double> HitShare(uint64_t matched, uint64_t missed) {
  const double asked = static_cast<double>(matched) + static_cast<double>(missed);
  if (asked == 0) return std::nullopt;
  return static_cast<double>(matched) / asked;
}

std::optional<NodeRates> RatesOf(const Snapshot* before, const Snapshot& now,
                                 const SurveyedNode& node) {
  if (before == nullptr || !node.stats) return std::nullopt;
  const auto same =
      std::find_if(before->nodes.begin(), before->nodes.end(), [&](const SurveyedNode& other) {
        return other.node_id == node.node_id && other.address == node.address;
      });
  if (same == before->nodes.end() || !same->stats) return std::nullopt;
  const client::NodeStats& a = *same->stats;
  const client::NodeStats& b = *node.stats;
  const double seconds = Seconds(now.at - before->at);
  // A new process counts from 0 again.
  if (seconds <= 0 || b.node_epoch != a.node_epoch || b.uptime_seconds < a.uptime_seconds) {
    return std::nullopt;
  }
  const auto rate = [&](uint64_t x, uint64_t y) { return static_cast<double>(y - x) / seconds; };
  return NodeRates{.seconds = seconds,
                   .matched_tokens = b.matched_tokens - a.matched_tokens,
                   .missed_tokens = b.missed_tokens - a.missed_tokens,
                   .to_workers = rate(a.fetched_bytes, b.fetched_bytes),
                   .from_workers = rate(a.pushed_bytes, b.pushed_bytes),
                   .from_peers = rate(same->view.numbers.read_bytes, node.view.numbers.read_bytes)};
}

}  // namespace cairn::cli
