#include "services/cache/mover/move_queue.h"

namespace cairn::cache {

MoveQueue::Pushed MoveQueue::Push(const NamespacePtr& ns, const BlockKey& key,
                                  MovePriority priority, std::weak_ptr<const void> waiter,
                                  bool anyway) {
  const Id id{ns.get(), key};
  MutexLock lock(mu_);
  const auto it = entries_.find(id);
  if (it != entries_.end()) {
    Entry& entry = it->second;
    entry.anyway |= anyway;
    entry.waiter = std::move(waiter);
    if (!entry.under_way && priority < entry.priority) {
      // The old place stays behind and is skipped: at most one per priority.
      entry.priority = priority;
      entry.ticket = next_ticket_++;
      lines_[static_cast<size_t>(priority)].push_back({id, entry.ticket});
    }
    return Pushed::kMerged;
  }
  if (waiting_ >= options_.capacity) return Pushed::kFull;
  Entry entry;
  entry.ns = ns;
  entry.waiter = std::move(waiter);
  entry.anyway = anyway;
  entry.priority = priority;
  entry.ticket = next_ticket_++;
  lines_[static_cast<size_t>(priority)].push_back({id, entry.ticket});
  entries_.emplace(id, std::move(entry));
  ++waiting_;
  return Pushed::kQueued;
}

std::optional<Move> MoveQueue::Pop() {
  MutexLock lock(mu_);
  if (under_way_ >= options_.max_under_way) return std::nullopt;
  for (auto& line : lines_) {
    while (!line.empty()) {
      const Place place = line.front();
      line.pop_front();
      const auto it = entries_.find(place.id);
      if (it == entries_.end() || it->second.under_way || it->second.ticket != place.ticket)
        continue;
      --waiting_;
      Entry& entry = it->second;
      if (!entry.anyway && entry.waiter.expired()) {
        entries_.erase(it);
        continue;
      }
      entry.under_way = true;
      ++under_way_;
      return Move{entry.ns, place.id.second};
    }
  }
  return std::nullopt;
}

void MoveQueue::Done(const Move& move) {
  MutexLock lock(mu_);
  if (entries_.erase(Id{move.ns.get(), move.key}) > 0) --under_way_;
}

bool MoveQueue::Contains(const NamespaceState& ns, const BlockKey& key) const {
  MutexLock lock(mu_);
  return entries_.contains(Id{&ns, key});
}

size_t MoveQueue::depth() const {
  MutexLock lock(mu_);
  return waiting_;
}

size_t MoveQueue::under_way() const {
  MutexLock lock(mu_);
  return under_way_;
}

}  // namespace cairn::cache
