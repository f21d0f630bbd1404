#include "services/cache/cluster/directory/announcer.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {
namespace {

bool Contains(const std::vector<std::string>& sorted, const std::string& id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

}  // namespace

void Announcer::Stored(AnnouncedWaymark waymark) {
  MutexLock lock(mu_);
  const auto [it, is_new] = (*shards_)[ShardOf(waymark.hash)].emplace(waymark.hash, waymark.tier);
  if (!is_new && std::exchange(it->second, waymark.tier) == waymark.tier) return;
  Tell(waymark.hash, is_new ? Change::kAdd : Change::kTier);
}

void Announcer::Gone(WaymarkHash hash) {
  MutexLock lock(mu_);
  if ((*shards_)[ShardOf(hash)].erase(hash) > 0) Tell(hash, Change::kRemove);
}

void Announcer::Tell(WaymarkHash hash, Change change) {
  for (const std::string& owner : OwnersIn(ShardOf(hash)).IdsOf(hash)) Tell(owner, hash, change);
}

void Announcer::Tell(const std::string& owner, WaymarkHash hash, Change change) {
  const auto found = streams_.find(owner);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  // Whatever the shard holds when the stream comes to it is told then.
  if (ShardOf(hash) >= stream.next_shard) return;
  const auto [it, is_new] = stream.waiting.emplace(hash, change);
  if (is_new) {
    if (stream.waiting.size() > options_.max_waiting) stream = Stream();
    return;
  }
  // The owner knows what waits as a removal or a change, and not what waits as an addition.
  switch (change) {
    case Change::kAdd:
      if (it->second == Change::kRemove) it->second = Change::kTier;
      break;
    case Change::kTier:
      break;
    case Change::kRemove:
      if (it->second == Change::kAdd) {
        stream.waiting.erase(it);
      } else {
        it->second = Change::kRemove;
      }
      break;
  }
}

void Announcer::SetOwners(std::shared_ptr<const OwnerMap> owners) {
  MutexLock lock(mu_);
  if (walking()) {
    next_ = std::move(owners);
  } else {
    BeginWalk(std::move(owners));
  }
}

void Announcer::BeginWalk(std::shared_ptr<const OwnerMap> owners) {
  before_ = std::exchange(owners_, std::move(owners));
  walked_ = 0;
  const std::vector<std::string>& ids = owners_->ids();
  std::erase_if(streams_, [&](const auto& entry) { return !Contains(ids, entry.first); });
  for (const std::string& id : ids) {
    // The walk tells a newcomer everything.
    const auto [it, is_new] = streams_.try_emplace(id);
    if (is_new) it->second.next_shard = kShards;
  }
}

bool Announcer::Step() {
  MutexLock lock(mu_);
  if (!walking()) return true;
  for (const auto& [hash, tier] : (*shards_)[walked_]) {
    const auto before = before_->IdsOf(hash), after = owners_->IdsOf(hash);
    for (const std::string& id : before) {
      if (std::find(after.begin(), after.end(), id) == after.end()) {
        Tell(id, hash, Change::kRemove);
      }
    }
    for (const std::string& id : after) {
      if (std::find(before.begin(), before.end(), id) == before.end()) {
        Tell(id, hash, Change::kAdd);
      }
    }
  }
  if (++walked_ < kShards) return false;
  before_ = owners_;
  if (next_ == nullptr) return true;
  BeginWalk(std::exchange(next_, nullptr));
  return false;
}

bool Announcer::HasNews(const Stream& stream) const {
  if (!stream.waiting.empty()) return true;
  return !stream.complete && !walking();
}

std::vector<std::string> Announcer::Waiting() const {
  MutexLock lock(mu_);
  std::vector<std::string> waiting;
  for (const auto& [id, stream] : streams_) {
    if (HasNews(stream)) waiting.push_back(id);
  }
  return waiting;
}

std::optional<Announcement> Announcer::Next(const std::string& owner) {
  MutexLock lock(mu_);
  const auto found = streams_.find(owner);
  if (found == streams_.end() || !HasNews(found->second)) return std::nullopt;
  Stream& stream = found->second;
  Announcement message;
  message.sequence = ++stream.sequence;
  message.begins = message.sequence == 1;
  TakeWaiting(stream, &message);
  // Not while owners change: the walk would tell of a shard what this stream tells, too.
  while (!walking() && stream.next_shard < kShards && message.size() < Announcement::kMost / 2) {
    TakeShard(owner, stream, &message);
  }
  if (!stream.complete && !walking() && stream.next_shard == kShards && stream.waiting.empty()) {
    stream.complete = message.complete = true;
  }
  for (const AnnouncedWaymark& add : message.adds) stream.check ^= add.hash;
  for (const WaymarkHash hash : message.removes) stream.check ^= hash;
  stream.count += message.adds.size();
  stream.count -= message.removes.size();
  message.count = stream.count;
  message.check = stream.check;
  return message;
}

void Announcer::TakeWaiting(Stream& stream, Announcement* message) {
  auto it = stream.waiting.begin();
  while (it != stream.waiting.end() && message->size() < Announcement::kMost) {
    const auto at = it++;
    const auto [hash, change] = *at;
    stream.waiting.erase(at);
    const Shard& shard = (*shards_)[ShardOf(hash)];
    const auto here = shard.find(hash);
    if (change == Change::kRemove) {
      message->removes.push_back(hash);
    } else if (here != shard.end()) {
      auto& list = change == Change::kAdd ? message->adds : message->changes;
      list.push_back({hash, here->second});
    }
  }
}

void Announcer::TakeShard(const std::string& owner, Stream& stream, Announcement* message) {
  for (const auto& [hash, tier] : (*shards_)[stream.next_shard]) {
    const auto ids = owners_->IdsOf(hash);
    if (std::find(ids.begin(), ids.end(), owner) == ids.end()) continue;
    // A message has its limit, and a shard may have more.
    if (message->size() < Announcement::kMost) {
      message->adds.push_back({hash, tier});
    } else {
      stream.waiting.emplace(hash, Change::kAdd);
    }
  }
  ++stream.next_shard;
}

void Announcer::Restart(const std::string& owner) {
  MutexLock lock(mu_);
  const auto found = streams_.find(owner);
  if (found != streams_.end()) found->second = Stream();
}

uint64_t Announcer::SequenceOf(const std::string& owner) const {
  MutexLock lock(mu_);
  const auto found = streams_.find(owner);
  return found == streams_.end() ? 0 : found->second.sequence;
}

uint64_t Announcer::bytes() const {
  MutexLock lock(mu_);
  uint64_t bytes = sizeof(Shards);
  for (const Shard& shard : *shards_) bytes += shard.capacity() * (sizeof(Shard::value_type) + 1);
  for (const auto& [owner, stream] : streams_) {
    bytes +=
        sizeof(stream) + stream.waiting.capacity() * (sizeof(WaymarkHash) + 2 * sizeof(Change));
  }
  return bytes;
}

uint64_t Announcer::waymarks() const {
  MutexLock lock(mu_);
  uint64_t total = 0;
  for (const Shard& shard : *shards_) total += shard.size();
  return total;
}

}  // namespace cairn::cache
