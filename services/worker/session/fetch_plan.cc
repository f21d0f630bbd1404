#include "services/worker/session/fetch_plan.h"

#include <algorithm>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::worker {

FetchPlan::FetchPlan(uint32_t blocks, uint32_t layers)
    : blocks_(blocks),
      layers_(layers),
      there_(static_cast<size_t>(blocks) * layers, false),
      computed_(blocks, false),
      layer_missing_(layers, blocks),
      block_missing_(blocks, layers) {
  CAIRN_CHECK(blocks > 0 && layers > 0);
}

std::pair<uint32_t, uint32_t> FetchPlan::MissingOf(uint32_t layer) const {
  uint32_t first = blocks_;
  uint32_t end = 0;
  if (layer_missing_[layer] == 0) return {first, end};
  for (uint32_t b = target_; b < blocks_; ++b) {
    if (computed_[b] || there_[Cell(b, layer)]) continue;
    first = std::min(first, b);
    end = b + 1;
  }
  return {first, end};
}

std::optional<FetchPlan::Range> FetchPlan::Next(uint64_t max_cells) const {
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    const auto missing = MissingOf(layer);
    if (missing.first >= missing.second) continue;
    Range range{missing.first, missing.second, layer, layer + 1};
    while (range.layer_end < layers_ && MissingOf(range.layer_end) == missing) {
      ++range.layer_end;
      if (range.cells() > max_cells) {
        --range.layer_end;
        break;
      }
    }
    return range;
  }
  return std::nullopt;
}

void FetchPlan::Arrived(uint32_t block, uint32_t layer) {
  if (there_[Cell(block, layer)]) return;
  there_[Cell(block, layer)] = true;
  --block_missing_[block];
  if (!computed_[block]) --layer_missing_[layer];
}

void FetchPlan::Computed(uint32_t block) {
  if (computed_[block]) return;
  computed_[block] = true;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    if (!there_[Cell(block, layer)]) --layer_missing_[layer];
  }
}

namespace {

// The result of fetching.
struct Fetching {
  double cells = 0;  // Still to come.
  double layers = 1;
  double layers_there = 0;  // From the first on, for all blocks.
  double node_first = 0;
  double node_last = 0;
};

// Until the prompt is computed when computing the front takes `front` seconds, the rest `rest`.
double FinishSeconds(const ChooserInput& in, const Fetching& fetch, double front, double rest) {
  const double bytes = fetch.cells * static_cast<double>(in.cell_bytes);
  front *= in.slowdown;
  const double begins = std::max(in.latency_seconds, fetch.node_first);
  const double beside = in.bytes_per_second * in.share_beside;
  // With overlap the rest is computed during the fetch, too.
  const double computing = in.overlap ? front + rest : front;
  const double meanwhile = std::max(0.0, computing - begins) * beside;
  double fetched = bytes <= meanwhile
                       ? begins + bytes / beside
                       : std::max(computing, begins) + (bytes - meanwhile) / in.bytes_per_second;
  fetched = std::max(fetched, fetch.node_last);
  if (!in.overlap) return std::max(front, fetched) + rest;
  // Layer i of the rest waits for layer i of the fetch: the first that is missing or the last one
  // decides. The node sends the first layer of a block when it has read the block.
  const double layers_left = fetch.layers - fetch.layers_there;
  const double first =
      std::max(fetch.node_last, begins + bytes / layers_left / in.bytes_per_second);
  return std::max(
      {front + rest, first + rest * layers_left / fetch.layers, fetched + rest / fetch.layers});
}

}  // namespace

Choice Choose(const FetchPlan& plan, const PrefillModel& prefill, const ChooserInput& in) {
  const uint32_t matched = plan.blocks();
  std::vector<uint64_t> missing(matched + 1, 0);  // From the block to the end.
  for (uint32_t b = matched; b-- > in.front;) missing[b] = missing[b + 1] + plan.BlockMissing(b);

  const auto tokens = [&](uint32_t block) { return int64_t{block} * in.block_tokens; };
  const double rest = prefill.RangeSeconds(tokens(matched), in.prompt_tokens, in.chunk_tokens);
  uint32_t there = 0;
  while (there + 1 < plan.layers() && plan.LayerMissing(there) == 0) ++there;
  const auto finish = [&](uint32_t target, double front) {
    Fetching fetch;
    fetch.cells = static_cast<double>(missing[target]);
    if (fetch.cells == 0) return front * in.slowdown + rest;
    fetch.node_first = in.node_first_seconds;
    fetch.node_last = std::max(in.node_first_seconds, in.node_last_seconds * fetch.cells /
                                                          static_cast<double>(missing[in.front]));
    fetch.layers = plan.layers();
    fetch.layers_there = there;
    return FinishSeconds(in, fetch, front, rest);
  };
  Choice choice;
  choice.target = in.front;
  choice.fetch_seconds = choice.seconds = finish(in.front, 0);
  if (!prefill.known() || missing[in.front] == 0) return choice;

  Choice best = choice;
  double whole_chunks = 0;
  int64_t chunk_begin = tokens(in.front);
  for (uint32_t target = in.front + 1; target < matched; ++target) {
    const int64_t end = tokens(target);
    const double front = whole_chunks + prefill.Seconds(chunk_begin, end - chunk_begin);
    if (end - chunk_begin >= in.chunk_tokens) {
      whole_chunks = front;
      chunk_begin = end;
    }
    const double seconds = finish(target, front);
    if (seconds < best.seconds) {
      best.target = target;
      best.seconds = seconds;
    }
    if (front > best.seconds) break;  // It only grows from here.
  }
  const double compute = prefill.RangeSeconds(tokens(in.front), in.prompt_tokens, in.chunk_tokens);
  if (compute <= best.seconds) {
    best.target = matched;
    best.seconds = compute;
  }
  return best.seconds < in.worth_it * choice.fetch_seconds ? best : choice;
}

}  // namespace cairn::worker
