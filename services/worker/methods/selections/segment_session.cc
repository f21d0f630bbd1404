#include "services/worker/methods/selections/segment_session.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/format/selected_slice.h"
#include "common/keys/segment_keys.h"
#include "common/log/log.h"
#include "services/worker/methods/selections/segment_sink.h"

namespace cairn::worker {

SegmentSession::SegmentSession(PrefixSession& session, KvPool& pool, const Clock& clock)
    : session_(session), pool_(pool), clock_(clock) {
  CAIRN_CHECK(session.codec().selected());
}

SegmentSession::Found SegmentSession::Find(std::span<const BlockKey> chain, double prefill_speed,
                                           const std::string& trace) {
  const TimePoint start = clock_.Now();
  SegmentKeys keys(session_.fingerprint());
  Found found;
  Path path;
  while (path.blocks() < chain.size()) {
    const uint32_t begin = path.blocks();
    std::vector<BlockKey> last_blocks;
    for (uint32_t block = begin; block < chain.size(); ++block) {
      last_blocks.push_back(keys.Key(path.last(), chain[block], block - begin));
    }
    const auto exist = session_.Exist(last_blocks, trace);
    if (!exist.ok()) {
      log::Debug("cache_segments_unknown", {{"trace", trace}, {"error", ToString(exist.status())}});
      found.reason = MissReason::kUnavailable;
      break;
    }
    const auto deepest = std::find(exist->rbegin(), exist->rend(), true);
    if (deepest == exist->rend()) {
      found.reason = MissReason::kAbsent;
      break;
    }
    const auto end = begin + static_cast<uint32_t>(exist->rend() - deepest);
    const std::vector<BlockKey> segment = keys.Keys(path.last(), chain[end - 1], end - begin);
    path.keys.insert(path.keys.end(), segment.begin(), segment.end());
    path.ends.push_back(end);
  }
  if (!path.ends.empty()) {
    found.match = session_.Lookup(path.keys, prefill_speed, trace);
    if (found.match.blocks < path.blocks()) found.reason = found.match.reason;
    // A segment that the node has in part is none.
    while (path.blocks() > found.match.blocks) path.ends.pop_back();
    path.keys.resize(path.blocks());
    found.match.blocks = path.blocks();
  }
  found.path = std::move(path);
  found.seconds = Seconds(clock_.Now() - start);
  return found;
}

SegmentSession::Fetched SegmentSession::Fetch(Found found, const PrefixSession::FetchWanted& wanted,
                                              kernels::ThreadPool& pool,
                                              const std::function<void()>& make_room) {
  const TimePoint start = clock_.Now();
  const uint32_t blocks = found.path.blocks();
  SegmentSink sink(
      pool_.layout(), session_.codec(), blocks,
      {.lend = session_.options().lend, .loader = session_.loader(), .clock = &clock_});
  const PrefixSession::Brought brought = session_.Bring(std::move(found.match), sink, wanted);
  Fetched fetched;
  fetched.way = brought.path;
  fetched.path = std::move(found.path);
  Path& path = fetched.path;
  const auto cut = [&](uint32_t complete, MissReason reason) {
    if (path.blocks() <= complete) return;
    fetched.reason = reason == MissReason::kNone ? MissReason::kUnavailable : reason;
    while (path.blocks() > complete) path.ends.pop_back();
    path.keys.resize(path.blocks());
  };
  const uint32_t complete = sink.CompletePrefix();
  if (complete < blocks) {
    const MissReason of_block = sink.Reason(complete);
    cut(complete, of_block == MissReason::kNone ? brought.reason : of_block);
  }
  // Again without what could not be decoded; seldom.
  while (path.blocks() > 0) {
    RaggedBuilder builder(pool_, nullptr);
    const std::vector<int64_t> rows = sink.Rows(path.blocks());
    Status room = builder.Reserve(rows);
    if (!room.ok()) {
      make_room();
      room = builder.Reserve(rows);
    }
    if (!room.ok()) {
      log::Warn("segments_without_room", {{"trace", wanted.trace}, {"error", ToString(room)}});
      cut(0, MissReason::kRefused);
      break;
    }
    const std::optional<uint32_t> bad = sink.Decode(path.blocks(), pool, &builder);
    if (bad) {
      cut(*bad, MissReason::kCorrupt);
    } else if (!sink.Intact()) {
      cut(0, MissReason::kUnavailable);
    } else {
      fetched.prefix = builder.Finish(int64_t{path.blocks()} * pool_.layout().block_tokens);
      break;
    }
  }
  fetched.bytes = sink.bytes();
  fetched.seconds = Seconds(clock_.Now() - start);
  session_.CountFetched(path.blocks(), blocks - path.blocks(), fetched.bytes);
  return fetched;
}

SelectedRows RowsOfBlock(const KvLayout& kv, const selections::KeptRows& kept, uint32_t block) {
  const auto block_tokens = static_cast<uint32_t>(kv.block_tokens);
  const uint32_t words = format::MaskWords(block_tokens);
  const auto heads = static_cast<size_t>(kv.layers) * static_cast<size_t>(kv.kv_heads);
  SelectedRows rows;
  rows.kv = kv;
  rows.masks.resize(heads * words);
  uint64_t count = 0;
  for (size_t h = 0; h < heads; ++h) {
    const auto layer = static_cast<int32_t>(h) / kv.kv_heads;
    const auto head = static_cast<int32_t>(h) % kv.kv_heads;
    for (uint32_t t = 0; t < block_tokens; ++t) {
      if (!kept.kept(layer, head, int64_t{block} * block_tokens + t)) continue;
      rows.masks[h * words + t / 64] |= uint64_t{1} << (t % 64);
      ++count;
    }
  }
  rows.bytes = count * 2 * kv.row_bytes();
  return rows;
}

std::vector<ComputedBlock> SegmentSession::NewSegment(const Path& parent, const BlockKey& chain_end,
                                                      uint32_t end,
                                                      const selections::KeptRows& kept,
                                                      std::shared_ptr<const RaggedPrefix> prefix,
                                                      std::span<const double> compute_seconds,
                                                      const std::string& trace) const {
  const KvLayout& kv = pool_.layout();
  const auto block_tokens = static_cast<uint32_t>(kv.block_tokens);
  const uint32_t words = format::MaskWords(block_tokens);
  const uint32_t begin = parent.blocks();
  const std::vector<BlockKey> keys =
      SegmentKeys(session_.fingerprint()).Keys(parent.last(), chain_end, end - begin);
  const auto heads = static_cast<size_t>(kv.layers) * static_cast<size_t>(kv.kv_heads);
  // The segment's rows are the last ones of each head.
  std::vector<int64_t> next(heads);
  for (size_t h = 0; h < heads; ++h) {
    const auto layer = static_cast<int32_t>(h) / kv.kv_heads;
    const auto head = static_cast<int32_t>(h) % kv.kv_heads;
    next[h] = prefix->rows(layer, head) - kept.Count(layer, head);
  }
  std::vector<ComputedBlock> blocks;
  std::optional<BlockKey> before = parent.last();
  for (uint32_t b = 0; b < keys.size(); ++b) {
    SelectedRows rows = RowsOfBlock(kv, kept, b);
    rows.prefix = prefix;
    rows.first_row = next;
    for (size_t h = 0; h < heads; ++h) {
      for (uint32_t w = 0; w < words; ++w) next[h] += std::popcount(rows.masks[h * words + w]);
    }
    ComputedBlock block;
    block.key = keys[b];
    block.parent = before;
    before = keys[b];
    block.first_position = uint64_t{begin + b} * block_tokens;
    block.compute_seconds = begin + b < compute_seconds.size() ? compute_seconds[begin + b] : 0;
    block.selected = std::make_shared<const SelectedSlices>(std::move(rows));
    block.trace = trace;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace cairn::worker
