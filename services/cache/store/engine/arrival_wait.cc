#include "services/cache/store/engine/arrival_wait.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

// The first of the keys from `from` on that is not served. REQUIRES: from <= end.
uint32_t FirstMissing(const NodeContext& context, NamespaceState& ns,
                      std::span<const BlockKey> keys, uint32_t from, uint32_t end)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu) {
  const uint32_t now = context.UseTicksNow();
  while (from < end && ns.index.FindServed(keys[from], now)) ++from;
  return from;
}

// A match over pools waits for blocks of pool 0. Empty for another match.
std::vector<BlockKey> KeysOfPool0(const MatchRequest& request, const Layout& layout) {
  if (!request.joint.asked()) return {};
  return PoolKeys(request.keys, layout.BlockTokensOf(0) / layout.block_tokens, 0);
}

uint32_t TargetOf(const MatchRequest& request, size_t awaited) {
  const auto all = static_cast<uint32_t>(awaited);
  return request.wait_blocks == 0 ? all : std::min(all, request.wait_blocks);
}

// The memory that a wait keeps of its request, in bytes.
size_t BytesOf(const MatchRequest& request) {
  size_t bytes = sizeof(ArrivalWait) + request.keys.size_bytes() + request.trace.size();
  if (request.joint.asked()) {
    bytes += request.keys.size_bytes() + request.joint.pools.size() * sizeof(PoolNeed);
  }
  for (const std::string& holder : request.holders) bytes += sizeof(holder) + holder.size();
  return bytes;
}

}  // namespace

std::shared_ptr<FurtherMatch> ArrivalWait::Begin(ReadPath* reads, NodeContext* context,
                                                 Timers* timers, const MatchRequest& request,
                                                 const NamespacePtr& ns) {
  if (timers == nullptr || context->options.max_match_wait <= Duration(0)) return nullptr;
  const std::vector<BlockKey> of_pool_0 = KeysOfPool0(request, ns->spec.layout);
  const std::span<const BlockKey> keys =
      request.joint.asked() ? std::span<const BlockKey>(of_pool_0) : request.keys;
  {
    NamespaceLock lock(*ns, context->tiers);
    if (ns->dropped.load(std::memory_order_relaxed)) return nullptr;
    const uint32_t target = TargetOf(request, keys.size());
    const uint32_t missing = FirstMissing(*context, *ns, keys, 0, target);
    if (missing == target || !ns->pending.HasWriter(keys[missing])) return nullptr;
  }
  Arrivals::Place place = context->arrivals.Enter(request.session, ns->spec.tenant);
  if (!place) return nullptr;
  auto memory = context->memory.Charge(MemoryItem::kLeases, BytesOf(request),
                                       context->memory.bound(MemoryItem::kLeases) / 2);
  if (!memory.ok()) return nullptr;
  return std::make_shared<ArrivalWait>(reads, context, timers, request, ns, std::move(place),
                                       *std::move(memory));
}

ArrivalWait::ArrivalWait(ReadPath* reads, NodeContext* context, Timers* timers,
                         const MatchRequest& request, NamespacePtr ns, Arrivals::Place place,
                         MemoryCharge memory)
    : reads_(*reads),
      context_(*context),
      timers_(*timers),
      request_(request),
      keys_(request.keys.begin(), request.keys.end()),
      of_pool_0_(KeysOfPool0(request, ns->spec.layout)),
      holders_(request.holders.begin(), request.holders.end()),
      trace_(request.trace),
      begin_(context->clock->Now()),
      target_(TargetOf(request, awaited().size())),
      ns_(std::move(ns)),
      place_(std::move(place)),
      memory_(std::move(memory)) {
  request_.keys = keys_;
  request_.holders = holders_;
  request_.trace = trace_;
}

void ArrivalWait::Find(TimePoint deadline, Done done) {
  const auto self = shared_from_this();
  deadline_ = deadline;
  const Duration most = std::min(request_.wait, context_.options.max_match_wait);
  {
    MutexLock lock(mu_);
    token_.emplace(&context_.in_flight);
    done_ = std::move(done);
    timer_ = timers_.At(std::min(begin_ + most, deadline), [self] { self->Finish(); });
  }
  context_.counters.waited_matches.Add();
  Wake();
}

void ArrivalWait::Wake() {
  if (Advance()) Finish();
}

bool ArrivalWait::Advance() {
  MutexLock lock(mu_);
  if (!done_) return false;  // It is answered.
  NamespaceState& ns = *ns_;
  NamespaceLock ns_lock(ns, context_.tiers);
  if (ns.dropped.load(std::memory_order_relaxed)) return true;
  here_ = FirstMissing(context_, ns, awaited(), here_, target_);
  if (here_ == target_ || !ns.pending.HasWriter(awaited()[here_])) return true;
  return !context_.arrivals.Add(&ns, awaited()[here_], shared_from_this());
}

void ArrivalWait::Finish() {
  Done done;
  NamespacePtr ns;
  {
    MutexLock lock(mu_);
    if (!done_) return;
    done = std::exchange(done_, nullptr);
    timers_.Cancel(timer_);
    ns = std::move(ns_);
    if (here_ < target_) context_.arrivals.Remove(ns.get(), awaited()[here_], this);
    place_.reset();
  }
  context_.counters.match_wait_seconds.Add(Seconds(context_.clock->Now() - begin_));
  request_.wait = Duration(0);
  Result<MatchResult> result = reads_.Match(request_);
  if (result.ok() && result->further != nullptr) {
    const auto further = std::exchange(result->further, nullptr);
    further->Find(deadline_, std::move(done));
  } else {
    done(std::move(result));
  }
  ns.reset();
  MutexLock lock(mu_);
  memory_.Clear();
  token_.reset();
}

}  // namespace cairn::cache
