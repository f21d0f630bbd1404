#pragma once
// The figures of `stat`, `stat --cluster` and `top` about a node's tiers.

#include <string>
#include <string_view>

#include "cairn/client/types.h"
#include "tools/cairn/output/json.h"

namespace cairn::cli {

// "12.5 %"; "-" of nothing.
std::string Percent(uint64_t part, uint64_t whole);

// nullptr: the node has no such tier.
const client::TierStat* TierOf(const client::NodeStats& stats, client::TierKind kind);
// "12 MiB of 1.0 GiB"; "-" without such a tier.
std::string TierFill(const client::NodeStats& stats, client::TierKind kind);
// By name of the tier: capacity_bytes, used_bytes, blocks.
Json TierFillJson(const client::NodeStats& stats);

}  // namespace cairn::cli
