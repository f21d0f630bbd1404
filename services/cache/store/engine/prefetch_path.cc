#include "services/cache/store/engine/prefetch_path.h"

#include "common/keys/call_limits.h"
#include "services/cache/store/engine/validate.h"

namespace cairn::cache {
namespace {

constexpr size_t kMaxHints = 16384;

}  // namespace

PrefetchPath::PrefetchPath(NodeContext* context, SessionTable* sessions, Promoters* promoters)
    : context_(*context),
      sessions_(*sessions),
      promoters_(*promoters),
      max_bytes_(context->options.max_hinted_bytes != 0
                     ? context->options.max_hinted_bytes
                     : context->tiers.host->GetStats().capacity_bytes / 4) {}

Result<PrefetchOutcome> PrefetchPath::Prefetch(const PrefetchRequest& request) {
  auto result = Take(request);
  if (result.ok() && result->queued_blocks > 0) promoters_.Kick();
  return result;
}

Result<PrefetchOutcome> PrefetchPath::Take(const PrefetchRequest& request) {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(request.session));
  CAIRN_RETURN_IF_ERROR(CheckCount("keys", request.keys.size(), kMaxKeysPerCall));
  if (request.needed_in.count() < 0 || request.needed_in > kMaxPrefetchHorizon) {
    return InvalidArgument("field 'needed_in': got {} s, expected 0 to {} s",
                           Seconds(request.needed_in), Seconds(kMaxPrefetchHorizon));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, sessions_.TenantOf(request.session));
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(request.fingerprint, tenant));
  CAIRN_RETURN_IF_ERROR(context_.CheckPace(*ns));
  const Duration lasts = request.needed_in + context_.options.prefetch_grace;
  const TimePoint end = context_.clock->Now() + lasts;
  const uint32_t last_use = context_.UseTicksAt(end);
  const uint32_t now = context_.UseTicksNow();

  PrefetchOutcome result;
  ByTier<std::vector<MoveQueue::Wanted>> wanted;
  Hint hint{.session = request.session, .waiter = std::make_shared<char>()};
  MutexLock hints_lock(mu_);
  if (hints_.size() >= kMaxHints) {
    return Errorf(StatusCode::kResourceExhausted, "hints: {} are held, the limit is {}",
                  hints_.size(), kMaxHints);
  }
  {
    NamespaceLock lock(*ns, context_.tiers);
    if (ns->dropped.load(std::memory_order_relaxed)) {
      return Errorf(StatusCode::kNotFound, "field 'fingerprint': namespace {} was dropped",
                    ns->fingerprint.Hex());
    }
    for (const BlockKey& key : request.keys) {
      const auto ref = ns->index.FindServed(key, now);
      if (!ref) {
        ++result.absent_blocks;
        continue;
      }
      const BlockMeta& meta = ns->index.MetaAt(*ref);
      // A block that is hinted for as long already costs nothing more.
      const uint64_t costs = meta.last_use >= last_use ? 0 : meta.served_bytes();
      if (costs > max_bytes_ - bytes_ - hint.bytes) {
        ++result.refused_blocks;
        continue;
      }
      hint.bytes += costs;
      ns->index.Protect(*ref, last_use);
      const TierKind tier = meta.served_from();
      if (Faster(TierKind::kHost, tier)) {
        wanted[tier].push_back({key, meta.bytes_in(tier)});
      } else {
        ++result.present_blocks;
      }
    }
  }
  for (const TierKind tier : context_.tiers.kinds()) {
    if (!wanted[tier].empty()) Queue(ns, tier, wanted[tier], hint.waiter, &result);
  }
  bytes_ += hint.bytes;
  // One that repeats others is kept too where it waits for moves: theirs may end before.
  if (hint.bytes > 0 || result.queued_blocks > 0) hints_.emplace(end, std::move(hint));
  return result;
}

void PrefetchPath::Queue(const NamespacePtr& ns, TierKind tier,
                         std::span<const MoveQueue::Wanted> wanted,
                         const std::weak_ptr<const void>& waiter, PrefetchOutcome* result) {
  const auto pushed =
      promoters_.IntoHost(tier)->Request(ns, wanted, MovePriority::kPrefetch, waiter);
  const size_t queued = pushed.queued + pushed.merged;
  result->queued_blocks += static_cast<uint32_t>(queued);
  result->refused_blocks += static_cast<uint32_t>(pushed.full);
  const double pace = context_.pace[tier].BytesPerSecond();
  if (pace <= 0) return;
  uint64_t bytes = pushed.bytes_ahead;
  for (size_t i = 0; i < queued; ++i) bytes += wanted[i].bytes;
  result->estimated_seconds =
      std::max(result->estimated_seconds, static_cast<double>(bytes) / pace);
}

void PrefetchPath::EndSession(SessionId session) {
  MutexLock lock(mu_);
  for (auto& [end, hint] : hints_) {
    if (hint.session == session) hint.waiter.reset();
  }
}

void PrefetchPath::Tick() {
  const TimePoint now = context_.clock->Now();
  MutexLock lock(mu_);
  while (!hints_.empty() && hints_.begin()->first <= now) {
    bytes_ -= hints_.begin()->second.bytes;
    hints_.erase(hints_.begin());
  }
}

uint64_t PrefetchPath::hinted_bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace cairn::cache
