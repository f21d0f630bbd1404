#include "services/cache/engine/read_path.h"

#include <cmath>

#include "common/keys/limits.h"
#include "services/cache/engine/layered_fetch.h"
#include "services/cache/engine/validate.h"

namespace cairn::cache {
namespace {

constexpr TierKind kHost = TierKind::kHost;

// Fills in `seconds` of the runs, in order: bytes leave host one after the other; those of other
// tiers arrive meanwhile, each tier's after the `bytes_ahead` of it that others wait for. 0 from
// where the pace of a slower tier is not known; the unknown pace of host or a faster tier counts as
// no time beside a slower one's.
void EstimateSeconds(const ByTier<ReadPace>& pace, const ByTier<uint64_t>& bytes_ahead,
                     std::vector<TierRun>* runs) {
  const double host = pace[kHost].BytesPerSecond();
  double left = 0;     // When the runs so far have left.
  double arrived = 0;  // When what was in other tiers so far has arrived.
  ByTier<double> waited;
  for (const TierKind tier : kTiersByRank) waited[tier] = static_cast<double>(bytes_ahead[tier]);
  for (TierRun& run : *runs) {
    const double bytes = static_cast<double>(run.bytes);
    if (run.tier != kHost) {
      const double speed = pace[run.tier].BytesPerSecond();
      if (speed <= 0 && Faster(kHost, run.tier)) return;
      waited[run.tier] += bytes;
      if (speed > 0) arrived = std::max(arrived, waited[run.tier] / speed);
    }
    if (host > 0) left += bytes / host;
    left = std::max(left, arrived);
    run.seconds = left;
  }
}

}  // namespace

ReadPath::ReadPath(NodeContext* context, SessionTable* sessions, Promoters* promoters,
                   TransferBudget* budget)
    : context_(*context), sessions_(*sessions), promoters_(*promoters), budget_(*budget) {}

Result<MatchResult> ReadPath::Match(const MatchRequest& request, LeaseLife life, LeasePtr* taken) {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(request.session));
  CAIRN_RETURN_IF_ERROR(CheckCount("keys", request.keys.size(), kMaxKeysPerCall));
  CAIRN_ASSIGN_OR_RETURN(const Duration ttl, CheckTtl("lease_ttl", request.lease_ttl,
                                                      context_.options.default_lease_ttl,
                                                      context_.options.max_lease_ttl));
  if (!std::isfinite(request.prefill_tokens_per_second) || request.prefill_tokens_per_second < 0) {
    return InvalidArgument(
        "field 'prefill_tokens_per_second': got {}, expected a number of at least 0",
        request.prefill_tokens_per_second);
  }
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(request.fingerprint));
  if (request.lease) CAIRN_RETURN_IF_ERROR(sessions_.CheckLeaseRoom(request.session));

  std::optional<BlockIndex::Walk> walked;
  MatchResult result;
  LeasePtr lease;
  {
    NamespaceLock lock(*ns, context_.tiers);
    if (ns->dropped.load(std::memory_order_relaxed)) {
      return Errorf(StatusCode::kNotFound, "field 'fingerprint': namespace {} was dropped",
                    ns->fingerprint.Hex());
    }
    const BlockIndex::Walk& walk =
        walked.emplace(ns->index.Match(request.keys, context_.UseTicksNow(), request.lease));
    if (request.lease && walk.matched > 0) {
      lease = std::make_shared<Lease>();
      for (const BlockIndex::Segment& segment : walk.segments) {
        lease->paths.push_back({ns->index.PinBlock(segment.deepest), segment.count});
      }
    }
    if (walk.matched < request.keys.size())
      result.miss_reason = WhyMissed(*ns, request.keys[walk.matched]);
  }
  const BlockIndex::Walk& walk = *walked;
  if (walk.matched == 0 && result.miss_reason == MissReason::kAbsent &&
      ns->blocks.load(std::memory_order_relaxed) == 0 && SimilarHasBlocks(*ns)) {
    result.miss_reason = MissReason::kFingerprint;
  }
  result.matched_blocks = walk.matched;
  result.bytes = walk.bytes;
  result.tiers.reserve(walk.runs.size());
  for (const BlockIndex::Run& run : walk.runs)
    result.tiers.push_back({run.tier, run.blocks, run.bytes});
  ByTier<uint64_t> bytes_ahead;

  if (lease != nullptr) {
    lease->ns = ns;
    lease->blocks = walk.matched;
    lease->runs = walk.runs;
    const TimePoint deadline =
        life == kUntilRelease ? TimePoint::max() : context_.clock->Now() + ttl;
    auto id = sessions_.AddLease(request.session, lease, deadline);
    // A drop that came meanwhile has not seen this lease.
    if (id.ok() && ns->dropped.load()) {
      if (sessions_.TakeLease(request.session, *id) != nullptr) End({lease}, MissReason::kAbsent);
      return Errorf(StatusCode::kNotFound, "field 'fingerprint': namespace {} was dropped",
                    ns->fingerprint.Hex());
    }
    if (!id.ok()) {
      End({lease}, MissReason::kRefused);
      return id.status();
    }
    result.lease = *id;
    result.lease_ttl = ttl;
    bytes_ahead = Promote(lease, request.keys);
    if (taken != nullptr) *taken = lease;
  } else if (walk.matched > 0) {
    for (const TierRun& run : result.tiers) {
      const Promoter* const promoter = promoters_.IntoHost(run.tier);
      if (promoter == nullptr) continue;
      bytes_ahead[run.tier] = promoter->queue().BytesAhead(MovePriority::kDemand);
    }
  }
  EstimateSeconds(context_.pace, bytes_ahead, &result.tiers);
  if (!result.tiers.empty()) result.estimated_fetch_seconds = result.tiers.back().seconds;

  if (request.lease) CountMatch(request, *ns, walk, result.miss_reason);
  return result;
}

void ReadPath::CountMatch(const MatchRequest& request, const NamespaceState& ns,
                          const BlockIndex::Walk& walk, MissReason miss_reason) {
  Counters& counters = context_.counters;
  const uint64_t block_tokens = ns.spec.layout.block_tokens;
  const uint64_t missed = request.keys.size() - walk.matched;
  counters.matched_blocks.Add(walk.matched);
  if (walk.prefetched > 0) counters.prefetched_used_blocks.Add(walk.prefetched);
  counters.matched_tokens.Add(walk.matched * block_tokens);
  counters.missed_tokens.Add(missed * block_tokens);
  if (missed > 0) counters.misses[static_cast<size_t>(miss_reason)].Add(missed);
  if (request.prefill_tokens_per_second > 0) {
    const double saved =
        static_cast<double>(walk.matched * block_tokens) / request.prefill_tokens_per_second;
    counters.prefill_seconds_saved.AddNanoseconds(
        static_cast<uint64_t>(std::min(saved, 1e6) * 1e9));
  }
}

MissReason ReadPath::WhyMissed(NamespaceState& ns, const BlockKey& key) {
  if (ns.pending.Contains(key)) return MissReason::kIncomplete;
  switch (context_.gone.Find(ns.fingerprint, key)) {
    case RecentlyGone::Why::kEvicted:
      return MissReason::kEvicted;
    case RecentlyGone::Why::kCorrupt:
      return MissReason::kCorrupt;
    case RecentlyGone::Why::kUnknown:
      return MissReason::kAbsent;
  }
  return MissReason::kAbsent;
}

bool ReadPath::SimilarHasBlocks(NamespaceState& ns) {
  MutexLock lock(ns.similar_mu);
  for (const auto& weak : ns.similar) {
    const NamespacePtr other = weak.lock();
    if (other != nullptr && !other->dropped.load() && other->blocks.load() > 0) return true;
  }
  return false;
}

ByTier<uint64_t> ReadPath::Promote(const LeasePtr& lease, std::span<const BlockKey> keys) {
  ByTier<std::vector<MoveQueue::Wanted>> wanted;
  size_t at = 0;
  for (const BlockIndex::Run& run : lease->runs) {
    if (Faster(kHost, run.tier) || (run.tier == kHost && promoters_.fills())) {
      for (size_t i = at; i < at + run.blocks; ++i)
        wanted[run.tier].push_back({keys[i], run.bytes / run.blocks});
    }
    at += run.blocks;
  }
  ByTier<uint64_t> bytes_ahead;
  for (const TierKind tier : context_.tiers.kinds()) {
    if (wanted[tier].empty()) continue;
    if (tier == kHost) {
      Fill(lease, wanted[kHost]);
      continue;
    }
    // A full queue leaves the rest to the fetch, which asks window by window.
    Promoter& promoter = *promoters_.IntoHost(tier);
    bytes_ahead[tier] =
        promoter.Request(lease->ns, wanted[tier], MovePriority::kDemand, lease).bytes_ahead;
    promoter.Kick();
  }
  return bytes_ahead;
}

// What was read from host is likely to be read again: behind all demand it is copied to where the
// next reader gets it sooner.
void ReadPath::Fill(const LeasePtr& lease, std::span<const MoveQueue::Wanted> wanted) {
  for (const TierKind tier : context_.tiers.kinds()) {
    Promoter* const promoter = promoters_.FromHost(tier);
    if (promoter == nullptr) continue;
    promoter->Request(lease->ns, wanted, MovePriority::kRebalance, lease);
    promoter->Kick();
  }
}

Result<std::unique_ptr<FetchStream>> ReadPath::Fetch(const FetchRequest& request) {
  CAIRN_ASSIGN_OR_RETURN(const LeasePtr lease, sessions_.FindLease(request.session, request.lease,
                                                                   context_.clock->Now()));
  const uint32_t block_end = request.block_end == 0 ? lease->blocks : request.block_end;
  if (request.block_begin >= block_end || block_end > lease->blocks) {
    return InvalidArgument(
        "field 'block_begin': got blocks [{}, {}), expected a range within the lease's {} blocks",
        request.block_begin, block_end, lease->blocks);
  }
  const uint32_t layers = lease->ns->spec.layout.Layers();
  const uint32_t layer_end = request.layer_end == 0 ? layers : request.layer_end;
  if (request.layer_begin >= layer_end || layer_end > layers) {
    return InvalidArgument(
        "field 'layer_begin': got layers [{}, {}), expected a range within the layout's {} layers",
        request.layer_begin, layer_end, layers);
  }
  return LayeredFetch::Start({&context_, &promoters_, &budget_}, lease,
                             {request.block_begin, block_end}, {request.layer_begin, layer_end},
                             request.reader_verifies, std::string(request.trace));
}

Status ReadPath::Release(SessionId session, std::span<const LeaseId> leases) {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(session));
  for (const LeaseId id : leases) {
    if (LeasePtr lease = sessions_.TakeLease(session, id))
      End({std::move(lease)}, MissReason::kRefused);
  }
  return OkStatus();
}

Result<Duration> ReadPath::RenewLease(SessionId session, LeaseId lease, Duration ttl) {
  CAIRN_ASSIGN_OR_RETURN(const Duration lifetime,
                         CheckTtl("lease_ttl", ttl, context_.options.default_lease_ttl,
                                  context_.options.max_lease_ttl));
  const TimePoint now = context_.clock->Now();
  CAIRN_RETURN_IF_ERROR(sessions_.RenewLease(session, lease, now, now + lifetime));
  return lifetime;
}

Result<std::vector<std::optional<TierKind>>> ReadPath::Exists(const Fingerprint& fingerprint,
                                                              std::span<const BlockKey> keys) {
  CAIRN_RETURN_IF_ERROR(CheckCount("keys", keys.size(), kMaxKeysPerCall));
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(fingerprint));
  std::vector<std::optional<TierKind>> found(keys.size());
  NamespaceLock lock(*ns, context_.tiers);
  if (!ns->dropped.load(std::memory_order_relaxed)) ns->index.FindAll(keys, found);
  return found;
}

void ReadPath::End(const std::vector<LeasePtr>& leases, MissReason reason) {
  for (const LeasePtr& lease : leases) {
    lease->ended.store(reason, std::memory_order_release);
    NamespaceLock lock(*lease->ns, context_.tiers);
    for (const Lease::Path& path : lease->paths) lease->ns->index.Unpin(path.pin, &lock.released);
  }
  if (!leases.empty()) context_.progress.Notify();
}

}  // namespace cairn::cache
