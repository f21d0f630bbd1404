#include "services/cache/store/engine/read_path.h"

#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "common/keys/call_limits.h"
#include "services/cache/store/engine/arrival_wait.h"
#include "services/cache/store/engine/fetch_slot.h"
#include "services/cache/store/engine/layered_fetch.h"
#include "services/cache/store/engine/path_pins.h"
#include "services/cache/store/engine/row_fetch.h"
#include "services/cache/store/engine/source_lookup.h"
#include "services/cache/store/engine/validate.h"

namespace cairn::cache {
namespace {

constexpr TierKind kHost = TierKind::kHost;
// The memory that tables keep for a lease.
constexpr uint64_t kLeaseEntryBytes = 256;

// A block without parts that has a writer, in the tables.
constexpr uint64_t kAnnouncedBytes = sizeof(BlockKey) + 512;

uint64_t LeaseBytes(size_t paths, size_t runs, size_t located, size_t announced = 0) {
  return sizeof(Lease) + kLeaseEntryBytes + paths * (kPinBytes + sizeof(Lease::Path)) +
         runs * sizeof(BlockIndex::Run) + located * sizeof(Lease::LocatedBlock) +
         announced * kAnnouncedBytes;
}

// How many keys there are before the first one that stands there twice.
size_t DifferentKeys(std::span<const BlockKey> keys) {
  absl::flat_hash_set<BlockKey> seen;
  size_t count = 0;
  while (count < keys.size() && seen.insert(keys[count]).second) ++count;
  return count;
}

Status CheckSpeed(double prefill_tokens_per_second) {
  if (std::isfinite(prefill_tokens_per_second) && prefill_tokens_per_second >= 0) {
    return OkStatus();
  }
  return InvalidArgument(
      "field 'prefill_tokens_per_second': got {}, expected a number of at least 0",
      prefill_tokens_per_second);
}

Status Dropped(const NamespaceState& ns) {
  return Errorf(StatusCode::kNotFound, "field 'fingerprint': namespace {} was dropped",
                ns.fingerprint.Hex());
}

// Fills in `seconds` of the runs, in order: bytes leave host one after the other; those of other
// tiers arrive meanwhile, each tier's after the `bytes_ahead` of it that others wait for. From the
// first run on whose tier is slow and has no known pace, they are 0; the unknown pace of host or a
// faster tier counts as no time next to a slower one's. REQUIRES: all runs lie in tiers.
void EstimateSeconds(const ByTier<ReadPace>& pace, const ByTier<uint64_t>& bytes_ahead,
                     std::vector<TierRun>* runs) {
  const double host = pace[kHost].BytesPerSecond();
  double left = 0;     // When the runs so far have left.
  double arrived = 0;  // When what was in other tiers so far has arrived.
  ByTier<double> waited;
  for (const TierKind tier : kTiersByRank) waited[tier] = static_cast<double>(bytes_ahead[tier]);
  for (TierRun& run : *runs) {
    const double bytes = static_cast<double>(run.bytes);
    const TierKind tier = *run.tier;
    if (tier != kHost) {
      const double speed = pace[tier].BytesPerSecond();
      if (speed <= 0 && Faster(kHost, tier)) return;
      waited[tier] += bytes;
      if (speed > 0) arrived = std::max(arrived, waited[tier] / speed);
    }
    if (host > 0) left += bytes / host;
    left = std::max(left, arrived);
    run.seconds = left;
  }
}

}  // namespace

ReadPath::ReadPath(NodeContext* context, SessionTable* sessions, Promoters* promoters,
                   TransferBudget* budget, SourceReads* source_reads, BlockSource* source,
                   Timers* timers)
    : context_(*context),
      sessions_(*sessions),
      promoters_(*promoters),
      budget_(*budget),
      source_reads_(*source_reads),
      source_(source),
      timers_(timers) {}

void ReadPath::CountHint(NextUse next) {
  switch (next) {
    case NextUse::kSoon:
      return context_.counters.hints_soon.Add();
    case NextUse::kLater:
      return context_.counters.hints_later.Add();
    case NextUse::kNever:
      return context_.counters.hints_never.Add();
    case NextUse::kUnknown:
      return;
  }
}

Result<Duration> ReadPath::CheckMatch(const MatchRequest& request) const {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(request.session));
  CAIRN_RETURN_IF_ERROR(CheckCount("keys", request.keys.size(), kMaxKeysPerCall));
  CAIRN_RETURN_IF_ERROR(CheckSpeed(request.prefill_tokens_per_second));
  if (request.announce && !request.lease) {
    return InvalidArgument("field 'announce': got true without a lease, expected one");
  }
  if (request.lease) CAIRN_RETURN_IF_ERROR(sessions_.CheckLeaseRoom(request.session));
  return CheckTtl("lease_ttl", request.lease_ttl, context_.options.default_lease_ttl,
                  context_.options.max_lease_ttl);
}

std::shared_ptr<FurtherMatch> ReadPath::Wait(const MatchRequest& request, const NamespacePtr& ns) {
  if (request.wait <= Duration(0)) return nullptr;
  return ArrivalWait::Begin(this, &context_, timers_, request, ns);
}

Result<MatchResult> ReadPath::Match(const MatchRequest& request, LeaseLife life, LeasePtr* taken) {
  CAIRN_ASSIGN_OR_RETURN(const Duration ttl, CheckMatch(request));
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, sessions_.TenantOf(request.session));
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(request.fingerprint, tenant));
  CAIRN_RETURN_IF_ERROR(context_.CheckPace(*ns));
  if (request.joint.asked()) {
    CAIRN_RETURN_IF_ERROR(CheckQuestion(ns->spec.layout, request.joint, request.keys.size()));
  }
  MatchResult result;
  result.further = Wait(request, ns);
  if (result.further != nullptr) return result;
  CAIRN_ASSIGN_OR_RETURN(Walked walked, WalkAndPin(request, ns, life));
  result.joint = std::move(walked.joint);
  result.miss_reason = walked.miss_reason;
  result.matched_blocks = walked.walk.matched;
  result.bytes = walked.walk.bytes;
  result.tiers.reserve(walked.walk.runs.size());
  for (const BlockIndex::Run& run : walked.walk.runs) {
    result.tiers.push_back({run.tier, run.blocks, run.bytes});
  }
  ByTier<uint64_t> bytes_ahead;
  if (walked.lease != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(result.lease, AddLease(request.session, walked.lease, life, ttl));
    result.lease_ttl = ttl;
    const std::span<const BlockKey> leased = walked.keys;
    bytes_ahead = Promote(walked.lease, request.joint.asked() ? leased : request.keys);
    if (taken != nullptr) *taken = walked.lease;
  } else {
    for (const TierRun& run : result.tiers) {
      const Promoter* const promoter = promoters_.IntoHost(*run.tier);
      if (promoter == nullptr) continue;
      bytes_ahead[*run.tier] = promoter->queue().BytesAhead(MovePriority::kDemand);
    }
  }
  EstimateSeconds(context_.pace, bytes_ahead, &result.tiers);
  if (!result.tiers.empty()) result.estimated_fetch_seconds = result.tiers.back().seconds;
  Finish(request,
         {.session = request.session,
          .ns = ns,
          .leased = request.lease,
          .life = life,
          .lease_ttl = ttl,
          .lease = walked.lease,
          .prefill_tokens_per_second = request.prefill_tokens_per_second,
          .prefetched = walked.walk.prefetched},
         &result);
  return result;
}

Result<ReadPath::Walked> ReadPath::WalkAndPin(const MatchRequest& request, const NamespacePtr& ns,
                                              LeaseLife life) {
  Walked walked;
  const BlockIndex::Walk& walk = walked.walk;
  std::optional<JointPlan> plan;
  if (request.joint.asked()) plan.emplace(ns->spec.layout, request.joint, request.keys);
  {
    NamespaceLock lock(*ns, context_.tiers);
    CAIRN_RETURN_IF_ERROR(WalkLocked(request, plan ? &*plan : nullptr, life, *ns, &walked));
  }
  if (walk.matched == 0 && walked.miss_reason == MissReason::kAbsent &&
      ns->blocks.load(std::memory_order_relaxed) == 0 && SimilarHasBlocks(*ns)) {
    walked.miss_reason = MissReason::kFingerprint;
  }
  if (walked.lease != nullptr) {
    walked.lease->ns = ns;
    walked.lease->blocks = walk.matched;
    walked.lease->runs = walk.runs;
  }
  return walked;
}

Status ReadPath::WalkLocked(const MatchRequest& request, const JointPlan* plan, LeaseLife life,
                            NamespaceState& ns, Walked* walked) {
  if (ns.dropped.load(std::memory_order_relaxed)) return Dropped(ns);
  const uint32_t now = context_.UseTicksNow();
  BlockIndex::Walk& walk = walked->walk;
  std::vector<BlockKey> of_pool_0;
  std::span<const BlockKey> rest;  // The keys that the caller writes if it announces.
  // A miss has its reason before this match is a writer of the block itself.
  if (plan == nullptr) {
    walk = ns.index.Match(request.keys, now, request.lease, request.next);
    rest = request.keys.subspan(walk.matched);
    if (!rest.empty()) walked->miss_reason = WhyMissed(ns, rest.front());
  } else {
    CAIRN_ASSIGN_OR_RETURN(JointWalk joint,
                           WalkJointly(ns.index, *plan, now, request.lease, request.next));
    walk = std::move(joint.walk);
    walked->keys = std::move(joint.keys);
    if (joint.answer.limiting_pool) {
      walked->miss_reason = joint.lost ? WhyMissed(ns, *joint.lost) : MissReason::kAbsent;
    }
    if (request.announce) {
      const Layout& layout = ns.spec.layout;
      of_pool_0 = PoolKeys(request.keys, layout.BlockTokensOf(0) / layout.block_tokens, 0);
      const size_t here = joint.answer.restorable_tokens / layout.BlockTokensOf(0);
      rest = std::span<const BlockKey>(of_pool_0).subspan(here);
    }
    walked->joint = std::move(joint.answer);
  }
  if (request.lease && request.next != NextUse::kUnknown) CountHint(request.next);
  const size_t announced = request.announce ? rest.size() : 0;
  if (request.lease && (walk.matched > 0 || announced > 0)) {
    CAIRN_ASSIGN_OR_RETURN(walked->lease, PinWalk(ns, walk, life, announced));
  }
  if (announced > 0) Announce(ns, rest, walked->lease.get());
  return OkStatus();
}

void ReadPath::Finish(const MatchRequest& request, LocalMatch local, MatchResult* result) {
  // One that announces has matched before, to read.
  if (request.announce) return;
  if (request.joint.asked()) {
    if (!request.lease) return;
    const Layout& layout = local.ns->spec.layout;
    const uint64_t most = request.joint.most_tokens != 0
                              ? request.joint.most_tokens
                              : request.keys.size() * uint64_t{layout.block_tokens};
    const uint64_t missed = most - result->joint.restorable_tokens;
    return CountLeased({.blocks = result->matched_blocks,
                        .tokens = result->joint.restorable_tokens,
                        .missed_blocks = missed / layout.block_tokens,
                        .missed_tokens = missed,
                        .prefetched = local.prefetched,
                        .miss_reason = result->miss_reason},
                       request.prefill_tokens_per_second);
  }
  const size_t matched = result->matched_blocks;
  const size_t different =
      source_ != nullptr && matched < request.keys.size() ? DifferentKeys(request.keys) : 0;
  if (matched >= different) {
    if (!request.lease) return;
    return CountLeased(FoundOf(*local.ns, *result, request.keys.size() - matched, local.prefetched),
                       request.prefill_tokens_per_second);
  }
  local.rest = {request.keys.begin() + static_cast<ptrdiff_t>(matched),
                request.keys.begin() + static_cast<ptrdiff_t>(different)};
  local.repeated = static_cast<uint32_t>(request.keys.size() - different);
  local.holders = {request.holders.begin(), request.holders.end()};
  local.trace = request.trace;
  local.result = *result;
  result->further = Further(std::move(local));
}

LeasePtr ReadPath::NewLease(LeaseLife life) {
  auto lease = std::make_shared<Lease>();
  lease->kind = life == kUntilRelease ? PinKind::kPlace : PinKind::kLease;
  return lease;
}

Result<LeasePtr> ReadPath::PinWalk(NamespaceState& ns, const BlockIndex::Walk& walk, LeaseLife life,
                                   size_t announced) {
  const LeasePtr lease = NewLease(life);
  // Those who announce leave half of the memory to those who read.
  CAIRN_ASSIGN_OR_RETURN(
      lease->memory,
      context_.memory.Charge(MemoryItem::kLeases,
                             LeaseBytes(walk.path_runs.size(), walk.runs.size(), 0, announced),
                             announced == 0 ? 0 : context_.memory.bound(MemoryItem::kLeases) / 2));
  for (const BlockIndex::PathRun& run : walk.path_runs) {
    lease->paths.push_back({ns.index.PinBlock(run.deepest, lease->kind), run.count});
  }
  return lease;
}

void ReadPath::Announce(NamespaceState& ns, std::span<const BlockKey> keys, Lease* lease) {
  const uint32_t now = context_.UseTicksNow();
  for (const BlockKey& key : keys) {
    if (ns.index.FindServed(key, now)) continue;
    ns.pending.AddWriter(key);
    lease->announced.push_back(key);
  }
  context_.counters.announced_blocks.Add(lease->announced.size());
}

std::shared_ptr<FurtherMatch> ReadPath::Further(LocalMatch local) {
  return std::make_shared<SourceLookup>(this, &context_, source_, timers_, std::move(local));
}

Result<LeaseId> ReadPath::AddLease(SessionId session, const LeasePtr& lease, LeaseLife life,
                                   Duration ttl) {
  const TimePoint deadline = life == kUntilRelease ? TimePoint::max() : context_.clock->Now() + ttl;
  auto id = sessions_.AddLease(session, lease, deadline);
  // A drop that came meanwhile has not seen this lease.
  if (id.ok() && lease->ns->dropped.load()) {
    if (sessions_.TakeLease(session, *id) != nullptr) End({lease}, MissReason::kAbsent);
    return Dropped(*lease->ns);
  }
  if (!id.ok()) End({lease}, MissReason::kRefused);
  return id;
}

Result<MatchResult> ReadPath::Extend(const LocalMatch& local, const Located& located) {
  MatchResult result = local.result;
  std::vector<Lease::LocatedBlock> found = Append(local, located, &result);
  if (!found.empty()) {
    NamespaceState& ns = *local.ns;
    if (local.leased) CAIRN_RETURN_IF_ERROR(sessions_.Check(local.session));
    {
      NamespaceLock lock(ns, context_.tiers);
      if (ns.dropped.load(std::memory_order_relaxed)) return Dropped(ns);
      result.miss_reason = found.size() < local.rest.size()
                               ? WhyMissed(ns, local.rest[found.size()])
                               : MissReason::kNone;
    }
    if (local.leased) {
      // A match in place has a lease even if all blocks come from elsewhere: its reader asks for
      // places.
      const LeasePtr lease = local.lease != nullptr ? local.lease : NewLease(local.life);
      const auto count = static_cast<uint32_t>(found.size());
      CAIRN_RETURN_IF_ERROR(ChargeLocated(count, lease.get()));
      lease->located = std::move(found);
      lease->located_blocks.store(count, std::memory_order_release);
      if (local.lease == nullptr) {
        lease->ns = local.ns;
        CAIRN_ASSIGN_OR_RETURN(result.lease,
                               AddLease(local.session, lease, local.life, local.lease_ttl));
        result.lease_ttl = local.lease_ttl;
      }
    }
  }
  CountMatch(local, result);
  return result;
}

Status ReadPath::ChargeLocated(uint32_t blocks, Lease* lease) {
  const uint64_t bytes = LeaseBytes(lease->paths.size(), lease->runs.size(), blocks);
  if (lease->memory.bytes() > 0) return lease->memory.Resize(bytes);
  CAIRN_ASSIGN_OR_RETURN(lease->memory, context_.memory.Charge(MemoryItem::kLeases, bytes));
  return OkStatus();
}

std::vector<Lease::LocatedBlock> ReadPath::Append(const LocalMatch& local, const Located& located,
                                                  MatchResult* result) const {
  std::vector<Lease::LocatedBlock> found;
  // The unknown pace of host or a faster tier counts as no time next to a source's.
  bool known = true;
  for (const TierRun& run : result->tiers) {
    known &= run.seconds > 0 || !Faster(kHost, *run.tier);
  }
  for (const SourceRun& run : located.runs) {
    const size_t left = local.rest.size() - found.size();
    const auto blocks = static_cast<uint32_t>(std::min<size_t>(run.blocks, left));
    if (blocks == 0) continue;
    const uint64_t each = run.bytes / run.blocks;
    for (uint32_t i = 0; i < blocks; ++i) found.push_back({local.rest[found.size()], each});
    known &= std::isfinite(run.seconds) && run.seconds > 0;
    TierRun to{.tier = std::nullopt, .blocks = blocks, .bytes = each * blocks};
    if (known) to.seconds = std::max(run.seconds, result->estimated_fetch_seconds);
    result->estimated_fetch_seconds = to.seconds;
    result->matched_blocks += blocks;
    result->bytes += to.bytes;
    result->tiers.push_back(to);
  }
  return found;
}

void ReadPath::CountMatch(const LocalMatch& local, const MatchResult& result) {
  if (!local.leased) return;
  const size_t asked = local.result.matched_blocks + local.rest.size() + local.repeated;
  CountLeased(FoundOf(*local.ns, result, asked - result.matched_blocks, local.prefetched),
              local.prefill_tokens_per_second);
}

ReadPath::Found ReadPath::FoundOf(const NamespaceState& ns, const MatchResult& result,
                                  size_t missed, uint32_t prefetched) {
  // In a namespace with pools, a match without them does not say what its blocks stand for: they
  // count as units.
  const uint64_t block_tokens = ns.spec.layout.block_tokens;
  return {.blocks = result.matched_blocks,
          .tokens = result.matched_blocks * block_tokens,
          .missed_blocks = missed,
          .missed_tokens = missed * block_tokens,
          .prefetched = prefetched,
          .miss_reason = result.miss_reason};
}

void ReadPath::CountLeased(const Found& found, double prefill_tokens_per_second) {
  Counters& counters = context_.counters;
  counters.matched_blocks.Add(found.blocks);
  if (found.prefetched > 0) counters.prefetched_used_blocks.Add(found.prefetched);
  counters.matched_tokens.Add(found.tokens);
  counters.missed_tokens.Add(found.missed_tokens);
  if (found.missed_blocks > 0) {
    counters.misses[static_cast<size_t>(found.miss_reason)].Add(found.missed_blocks);
  }
  if (prefill_tokens_per_second > 0) {
    const double saved = static_cast<double>(found.tokens) / prefill_tokens_per_second;
    counters.prefill_seconds_saved.Add(std::min(saved, 1e6));
  }
}

MissReason ReadPath::WhyMissed(NamespaceState& ns, const BlockKey& key) {
  if (ns.pending.Contains(key)) return MissReason::kIncomplete;
  const auto here = ns.index.FindAlive(key);
  if (here && ns.index.IsOver(*here, context_.UseTicksNow())) return MissReason::kExpired;
  return WhyGone(context_, ns, key);
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
      for (size_t i = at; i < at + run.blocks; ++i) {
        wanted[run.tier].push_back({keys[i], run.bytes / run.blocks});
      }
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

// A block that was read from host memory is likely to be read again: behind all demand it is copied
// to a faster tier for the next reader. That is for the next reader: it goes on when this one is
// done.
void ReadPath::Fill(const LeasePtr& lease, std::span<const MoveQueue::Wanted> wanted) {
  for (const TierKind tier : context_.tiers.kinds()) {
    Promoter* const promoter = promoters_.FromHost(tier);
    if (promoter == nullptr) continue;
    promoter->Request(lease->ns, wanted, MovePriority::kRebalance, lease->ns);
    promoter->Kick();
  }
}

Result<std::unique_ptr<FetchStream>> ReadPath::Fetch(const FetchRequest& request) {
  CAIRN_ASSIGN_OR_RETURN(const LeasePtr lease, sessions_.FindLease(request.session, request.lease,
                                                                   context_.clock->Now()));
  const FetchServices services = {&context_, &promoters_, &budget_, &source_reads_,
                                  request.session};
  if (!request.rows.empty()) {
    return RowFetch::Start(services, lease, request.layer_begin, request.rows,
                           std::string(request.trace));
  }
  const uint32_t covers = lease->covers();
  const uint32_t block_end = request.block_end == 0 ? covers : request.block_end;
  if (request.block_begin >= block_end || block_end > covers) {
    return InvalidArgument(
        "field 'block_begin': got blocks [{}, {}), expected a range within the lease's {} blocks",
        request.block_begin, block_end, covers);
  }
  const uint32_t layers = lease->ns->spec.layout.Layers();
  const uint32_t layer_end = request.layer_end == 0 ? layers : request.layer_end;
  if (request.layer_begin >= layer_end || layer_end > layers) {
    return InvalidArgument(
        "field 'layer_begin': got layers [{}, {}), expected a range within the layout's {} layers",
        request.layer_begin, layer_end, layers);
  }
  using Checks = LayeredFetch::Checks;
  return LayeredFetch::Start(services, lease,
                             {.blocks = {request.block_begin, block_end},
                              .layers = {request.layer_begin, layer_end},
                              .checks = request.reader_verifies ? Checks::kSample : Checks::kAll,
                              .trace = std::string(request.trace)});
}

Status ReadPath::Release(SessionId session, std::span<const LeaseId> leases) {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(session));
  for (const LeaseId id : leases) {
    if (LeasePtr lease = sessions_.TakeLease(session, id)) {
      End({std::move(lease)}, MissReason::kRefused);
    }
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
  if (!ns->dropped.load(std::memory_order_relaxed)) {
    ns->index.FindAll(keys, found, context_.UseTicksNow());
  }
  return found;
}

void ReadPath::End(const std::vector<LeasePtr>& leases, MissReason reason) {
  for (const LeasePtr& lease : leases) {
    lease->ended.store(reason, std::memory_order_release);
    absl::InlinedVector<PinId, 4> pins;
    for (const Lease::Path& path : lease->paths) pins.push_back(path.pin);
    Unpin(context_, *lease->ns, pins);
    if (!lease->announced.empty()) Withdraw(*lease);
  }
  if (!leases.empty()) context_.progress.Notify();
}

void ReadPath::Withdraw(const Lease& lease) {
  NamespaceState& ns = *lease.ns;
  {
    NamespaceLock lock(ns, context_.tiers);
    for (const BlockKey& key : lease.announced) ns.pending.RemoveWriter(key);
  }
  for (const BlockKey& key : lease.announced) context_.arrivals.Tell(&ns, key);
}

}  // namespace cairn::cache
