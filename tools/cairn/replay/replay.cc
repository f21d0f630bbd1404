#include "tools/cairn/replay/replay.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <tuple>
#include <vector>

#include "services/cache/store/index/block_index.h"
#include "services/cache/store/placement/disk_admission.h"

namespace cairn::cli::replay {
namespace {

using cache::BlockIndex;
using cache::PartPlace;
using cache::ReleaseList;

constexpr double kTokensPerSecond = 8000;
constexpr double kContextThatDoubles = 60000;
constexpr double kDiskHighWater = 0.9;
constexpr uint64_t kProgressEach = 1024;

BlockKey KeyOf(uint32_t block) {
  BlockKey key;
  // Only the index sees it, so it need not be a hash of tokens; but it should not be zero.
  const uint64_t words[4] = {block + 1, ~uint64_t{block}, 0x9e3779b97f4a7c15ull * (block + 1), 7};
  std::memcpy(key.bytes.data(), words, sizeof words);
  return key;
}

class Replayer {
 public:
  Replayer(const Trace& trace, const ReplayOptions& options)
      : trace_(trace),
        index_(kWhole, cache::MakePolicy(options.policy, /*seed=*/1), /*seed=*/1),
        admission_({.high_water = kDiskHighWater}) {
    capacity_[TierKind::kHost] = options.capacity_tokens / trace.block_tokens;
    capacity_[TierKind::kDisk] = options.disk_tokens / trace.block_tokens;
    keys_.reserve(trace.distinct_blocks);
    for (uint32_t block = 0; block < trace.distinct_blocks; ++block) {
      keys_.push_back(KeyOf(block));
    }
  }

  void Add(const TraceRequest& request) {
    now_ = cache::UseTicks(
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(request.seconds)));
    prompt_.clear();
    for (const uint32_t block : request.blocks) prompt_.push_back(keys_[block]);
    const auto walk = index_.Match(prompt_, now_, /*touch=*/true, request.next);
    result_.Count(trace_, request, walk.matched);
    cache::PinId pin = cache::kNoPin;
    if (walk.matched > 0) pin = index_.PinBlock(walk.path_runs.back().deepest);
    if (capacity_[TierKind::kDisk] > 0) {
      for (size_t at = 0; at < walk.matched; ++at) {
        (void)CopyTo(TierKind::kHost, prompt_[at]);
        CopyToDisk(prompt_[at]);
      }
    }
    double begin = 0;
    for (size_t at = 0; at < prompt_.size(); ++at) {
      const double end = begin + trace_.TokensOf(request, at);
      const double seconds = PrefillSeconds(end) - PrefillSeconds(begin);
      begin = end;
      if (at >= walk.matched && !Store(at, static_cast<float>(seconds))) break;
    }
    if (pin != cache::kNoPin) index_.Unpin(pin, &released_);
    released_.clear();
  }

  const ReplayResult& result() const { return result_; }

 private:
  static constexpr format::PartRect kWhole{0, 1, 0, 1};

  // False: everything left is pinned, or it was `keep` that went.
  bool MakeRoom(TierKind tier, const BlockKey* keep) {
    bool kept = true;
    while (index_.blocks_in(tier) >= capacity_[tier]) {
      const auto evicted = index_.EvictOne(tier, &released_);
      if (!evicted) return false;
      ++result_.evictions;
      kept &= keep == nullptr || evicted->key != *keep;
    }
    return kept;
  }

  // False: its path ends here, because the tier has no room for more of it.
  bool Store(size_t at, float seconds) {
    std::optional<BlockKey> parent;
    if (at > 0) parent = prompt_[at - 1];
    if (!MakeRoom(TierKind::kHost, at > 0 ? &prompt_[at - 1] : nullptr)) return false;
    PartPlace place{.rect = kWhole};
    place.Set(TierKind::kHost, {.id = ++extents_, .length = trace_.block_tokens});
    (void)index_.Insert(prompt_[at], parent, {place}, TierKind::kHost, seconds, now_);
    if (capacity_[TierKind::kDisk] > 0) CopyToDisk(prompt_[at]);
    return true;
  }

  bool CopyTo(TierKind tier, const BlockKey& key) {
    auto ref = index_.FindAlive(key);
    if (!ref || index_.MetaAt(*ref).in(tier) || !MakeRoom(tier, nullptr)) return false;
    ref = index_.FindAlive(key);
    if (!ref) return false;
    const cache::Extent extent{.id = ++extents_, .length = trace_.block_tokens};
    index_.AddToTier(*ref, tier, std::span(&extent, 1));
    return true;
  }

  void CopyToDisk(const BlockKey& key) {
    const auto ref = index_.FindAlive(key);
    if (!ref || index_.MetaAt(*ref).in(TierKind::kDisk)) return;
    const double used = static_cast<double>(index_.blocks_in(TierKind::kDisk)) /
                        static_cast<double>(capacity_[TierKind::kDisk]);
    const auto decision = admission_.Decide(
        {.bytes = trace_.block_tokens, .used_share = used, .touched = index_.MetaAt(*ref).uses > 0},
        TimePoint());
    if (decision.verdict != cache::DiskAdmission::Verdict::kCopy) return;
    result_.disk_writes += CopyTo(TierKind::kDisk, key);
  }

  const Trace& trace_;
  BlockIndex index_;
  cache::DiskAdmission admission_;
  ByTier<uint64_t> capacity_;
  std::vector<BlockKey> keys_;  // By number.
  std::vector<BlockKey> prompt_;
  ReleaseList released_;
  uint64_t extents_ = 0;
  uint32_t now_ = 0;
  ReplayResult result_;
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double PrefillSeconds(double tokens) {
  return (tokens + tokens * tokens / (2 * kContextThatDoubles)) / kTokensPerSecond;
}

void ReplayResult::Count(const Trace& trace, const TraceRequest& request, uint64_t matched) {
  const uint64_t hit = std::min<uint64_t>(matched * trace.block_tokens, request.input_tokens);
  ++requests;
  blocks += request.blocks.size();
  hit_blocks += matched;
  tokens += request.input_tokens;
  hit_tokens += hit;
  seconds_saved += PrefillSeconds(static_cast<double>(hit));
}

ReplayResult Replay(const Trace& trace, const ReplayOptions& options,
                    const ReplayProgress& progress) {
  Replayer replayer(trace, options);
  const auto start = std::chrono::steady_clock::now();
  for (const TraceRequest& request : trace.requests) {
    replayer.Add(request);
    const uint64_t done = replayer.result().requests;
    if (progress && done % kProgressEach == 0) progress(done);
  }
  ReplayResult result = replayer.result();
  result.replay_seconds = SecondsSince(start);
  return result;
}

ReplayResult ReplayOptimum(const Trace& trace, uint64_t capacity_tokens) {
  const auto start = std::chrono::steady_clock::now();
  const size_t capacity = capacity_tokens / trace.block_tokens;
  const auto requests = static_cast<uint32_t>(trace.requests.size());
  // For each block of each request, the next request that has it.
  std::vector<std::vector<uint32_t>> next_uses(requests);
  std::vector<uint32_t> next_of(trace.distinct_blocks, requests);
  for (uint32_t i = requests; i-- > 0;) {
    for (const uint32_t block : trace.requests[i].blocks) {
      next_uses[i].push_back(next_of[block]);
      next_of[block] = i;
    }
  }
  // Next use, depth, block: the last one goes first.
  using Held = std::tuple<uint32_t, uint32_t, uint32_t>;
  std::set<Held> held;
  std::vector<std::optional<Held>> places(trace.distinct_blocks);
  ReplayResult result;
  for (uint32_t i = 0; i < requests; ++i) {
    const TraceRequest& request = trace.requests[i];
    bool hit = true;
    uint64_t matched = 0;
    for (uint32_t at = 0; at < request.blocks.size(); ++at) {
      const uint32_t block = request.blocks[at];
      hit &= places[block].has_value();
      matched += hit;
      if (places[block]) held.erase(*places[block]);
      places[block] = Held{next_uses[i][at], at, block};
      held.insert(*places[block]);
    }
    while (held.size() > capacity) {
      const auto last = std::prev(held.end());
      places[std::get<2>(*last)].reset();
      held.erase(last);
      ++result.evictions;
    }
    result.Count(trace, request, matched);
  }
  result.replay_seconds = SecondsSince(start);
  return result;
}

}  // namespace cairn::cli::replay
