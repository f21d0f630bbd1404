#include "services/cache/store/mover/move_queue.h"

#include <algorithm>

namespace cairn::cache {
namespace {

// More waiters of one block than this are not told apart: the move is then never cancelled.
constexpr size_t kMaxWaiters = 8;
// A full queue looks through all its entries once in this many refusals.
constexpr size_t kSweepEvery = 256;

}  // namespace

bool MoveQueue::Wanting(const Entry& entry) {
  return entry.anyway || std::any_of(entry.waiters.begin(), entry.waiters.end(),
                                     [](const auto& waiter) { return !waiter.expired(); });
}

void MoveQueue::AddWaiter(Entry& entry, std::weak_ptr<const void> waiter) {
  if (entry.anyway) return;
  const auto same = [&waiter](const std::weak_ptr<const void>& other) {
    return other.expired() || (!other.owner_before(waiter) && !waiter.owner_before(other));
  };
  entry.waiters.erase(std::remove_if(entry.waiters.begin(), entry.waiters.end(), same),
                      entry.waiters.end());
  entry.waiters.push_back(std::move(waiter));
  entry.anyway = entry.waiters.size() > kMaxWaiters;
}

void MoveQueue::Enter(const Id& id, Entry& entry) {
  Line& line = lines_[static_cast<size_t>(entry.priority)];
  entry.ticket = next_ticket_++;
  line.places.emplace(entry.ticket, id);
  line.bytes += entry.bytes;
  ++waiting_;
}

void MoveQueue::Leave(const Entry& entry) {
  Line& line = lines_[static_cast<size_t>(entry.priority)];
  line.places.erase(entry.ticket);
  line.bytes -= entry.bytes;
  --waiting_;
}

bool MoveQueue::MakeRoom(MovePriority priority) {
  for (size_t p = kMovePriorityCount - 1; p > static_cast<size_t>(priority); --p) {
    auto& places = lines_[p].places;
    if (places.empty()) continue;
    const auto it = entries_.find(places.rbegin()->second);
    if (it->second.anyway) continue;
    Leave(it->second);
    entries_.erase(it);
    ++stats_.cancelled;
    return true;
  }
  if (refused_since_sweep_++ % kSweepEvery != 0) return false;
  const size_t before = waiting_;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto at = it++;
    if (at->second.under_way || Wanting(at->second)) continue;
    Leave(at->second);
    entries_.erase(at);
    ++stats_.cancelled;
  }
  return waiting_ < before;
}

MoveQueue::Pushed MoveQueue::PushLocked(const NamespacePtr& ns, const Wanted& wanted,
                                        MovePriority priority, std::weak_ptr<const void> waiter,
                                        bool anyway) {
  const Id id{ns.get(), wanted.key};
  const auto it = entries_.find(id);
  if (it != entries_.end()) {
    Entry& entry = it->second;
    entry.anyway |= anyway;
    AddWaiter(entry, std::move(waiter));
    if (!entry.under_way && priority < entry.priority) {
      Leave(entry);
      entry.priority = priority;
      Enter(id, entry);
    }
    ++stats_.merged;
    return Pushed::kMerged;
  }
  if (waiting_ >= options_.capacity && !MakeRoom(priority)) return Pushed::kFull;
  refused_since_sweep_ = 0;
  Entry entry;
  entry.ns = ns;
  entry.anyway = anyway;
  AddWaiter(entry, std::move(waiter));
  entry.bytes = wanted.bytes;
  entry.priority = priority;
  Enter(id, entry);
  entries_.emplace(id, std::move(entry));
  return Pushed::kQueued;
}

MoveQueue::Pushed MoveQueue::Push(const NamespacePtr& ns, const Wanted& wanted,
                                  MovePriority priority, std::weak_ptr<const void> waiter,
                                  bool anyway) {
  MutexLock lock(mu_);
  return PushLocked(ns, wanted, priority, std::move(waiter), anyway);
}

MoveQueue::PushedAll MoveQueue::PushAll(const NamespacePtr& ns, std::span<const Wanted> wanted,
                                        MovePriority priority,
                                        const std::weak_ptr<const void>& waiter) {
  PushedAll result;
  uint64_t own = 0;
  MutexLock lock(mu_);
  for (const Wanted& one : wanted) {
    const Pushed pushed = PushLocked(ns, one, priority, waiter, /*anyway=*/false);
    if (pushed == Pushed::kFull) break;
    ++(pushed == Pushed::kQueued ? result.queued : result.merged);
    own += one.bytes;
  }
  result.full = wanted.size() - result.queued - result.merged;
  const uint64_t all = BytesAheadLocked(priority);
  result.bytes_ahead = all - std::min(all, own);
  return result;
}

std::optional<Move> MoveQueue::Pop() {
  MutexLock lock(mu_);
  for (size_t p = 0; p < kMovePriorityCount && under_way_ < options_.max_under_way; ++p) {
    const bool prefetch = p == static_cast<size_t>(MovePriority::kPrefetch);
    if (prefetch && prefetches_under_way_ >= options_.max_prefetch_under_way) continue;
    auto& places = lines_[p].places;
    while (!places.empty()) {
      const auto it = entries_.find(places.begin()->second);
      Entry& entry = it->second;
      Leave(entry);
      if (!Wanting(entry)) {
        entries_.erase(it);
        ++stats_.cancelled;
        continue;
      }
      entry.under_way = true;
      ++under_way_;
      if (prefetch) ++prefetches_under_way_;
      under_way_bytes_ += entry.bytes;
      return Move{entry.ns, it->first.second, entry.priority};
    }
  }
  return std::nullopt;
}

void MoveQueue::Done(const Move& move) {
  MutexLock lock(mu_);
  const auto it = entries_.find(Id{move.ns.get(), move.key});
  if (it == entries_.end()) return;
  --under_way_;
  if (it->second.priority == MovePriority::kPrefetch) --prefetches_under_way_;
  under_way_bytes_ -= it->second.bytes;
  entries_.erase(it);
}

bool MoveQueue::Contains(const NamespaceState& ns, const BlockKey& key) const {
  MutexLock lock(mu_);
  return entries_.contains(Id{&ns, key});
}

size_t MoveQueue::depth() const {
  MutexLock lock(mu_);
  return waiting_;
}

size_t MoveQueue::depth(MovePriority priority) const {
  MutexLock lock(mu_);
  return lines_[static_cast<size_t>(priority)].places.size();
}

size_t MoveQueue::under_way() const {
  MutexLock lock(mu_);
  return under_way_;
}

uint64_t MoveQueue::BytesAheadLocked(MovePriority priority) const {
  uint64_t bytes = under_way_bytes_;
  for (size_t p = 0; p <= static_cast<size_t>(priority); ++p) bytes += lines_[p].bytes;
  return bytes;
}

uint64_t MoveQueue::BytesAhead(MovePriority priority) const {
  MutexLock lock(mu_);
  return BytesAheadLocked(priority);
}

MoveQueue::Stats MoveQueue::GetStats() const {
  MutexLock lock(mu_);
  return stats_;
}

}  // namespace cairn::cache
