#include "services/cache/cluster/directory/directory.h"

#include <algorithm>
#include <utility>

namespace cairn::cache {

Directory::Directory(Options options) : options_(options), table_(options.max_bytes) {}

uint64_t Directory::SequenceOf(const std::string& holder, uint64_t incarnation) const {
  MutexLock lock(mu_);
  const auto it = streams_.find(holder);
  return it == streams_.end() || it->second.incarnation != incarnation ? 0 : it->second.sequence;
}

bool Directory::Has(const Stream& stream, const Announcement& message) {
  return message.sequence == stream.sequence && message.count == stream.count &&
         message.check == stream.check && message.complete <= stream.complete;
}

void Directory::Forget(HolderNumber number) {
  if (number == 0) return;
  table_.RemoveHolder(number);
  names_.erase(number);
}

Status Directory::Begin(const std::string& holder, Stream& stream) {
  const HolderNumber number = table_.NewHolder();
  if (number == 0) {
    return Errorf(StatusCode::kResourceExhausted,
                  "directory: no number is free for another stream");
  }
  names_[number] = holder;
  // A stream that began and broke has told less than the one before it.
  if (stream.complete) {
    Forget(std::exchange(stream.before, stream.arriving));
  } else {
    Forget(stream.arriving);
  }
  stream.arriving = number;
  stream.complete = false;
  stream.count = stream.check = 0;
  return OkStatus();
}

Status Directory::Apply(const std::string& holder, uint64_t incarnation,
                        const Announcement& message) {
  if (message.size() > Announcement::kMost) {
    return InvalidArgument("announcement: got {} waymarks, expected at most {}", message.size(),
                           Announcement::kMost);
  }
  MutexLock lock(mu_);
  if (message.begins && members_.contains(holder)) {
    Stream& opened = streams_[holder];
    if (std::exchange(opened.incarnation, incarnation) != incarnation) opened.sequence = 0;
  }
  const auto found = streams_.find(holder);
  if (found == streams_.end() || found->second.incarnation != incarnation) {
    return Errorf(StatusCode::kNotFound, "announcement: '{}' has no open stream", holder);
  }
  Stream& stream = found->second;
  if (Has(stream, message)) return OkStatus();
  if (message.begins != (message.sequence == 1) ||
      (!message.begins && message.sequence != stream.sequence + 1)) {
    if (message.sequence < stream.sequence) {
      return Errorf(StatusCode::kAborted, "announcement: number {} came before", message.sequence);
    }
    const uint64_t expected = std::exchange(stream.sequence, 0) + 1;
    return Errorf(StatusCode::kAborted, "announcement: got number {}, expected {}",
                  message.sequence, expected);
  }
  if (message.begins) CAIRN_RETURN_IF_ERROR(Begin(holder, stream));
  stream.sequence = message.sequence;
  for (const AnnouncedWaymark& add : message.adds) {
    stream.check ^= add.hash;
    table_.Add(add.hash, {stream.arriving, add.tier}, stream.before);
  }
  for (const AnnouncedWaymark& change : message.changes) {
    table_.Add(change.hash, {stream.arriving, change.tier}, stream.before);
  }
  for (const WaymarkHash hash : message.removes) {
    stream.check ^= hash;
    table_.Remove(hash, stream.arriving);
  }
  stream.count += message.adds.size();
  stream.count -= message.removes.size();
  if (stream.count != message.count || stream.check != message.check) {
    stream.sequence = 0;
    return Errorf(StatusCode::kAborted, "announcement: got sums of {} waymarks, expected {}",
                  message.count, stream.count);
  }
  if (stream.count > options_.max_per_holder) {
    stream.sequence = 0;
    Forget(std::exchange(stream.arriving, HolderNumber{0}));
    return InvalidArgument("announcement: '{}' has {} waymarks, expected at most {}", holder,
                           stream.count, options_.max_per_holder);
  }
  if (message.complete) {
    stream.complete = true;
    Forget(std::exchange(stream.before, HolderNumber{0}));
  }
  return OkStatus();
}

void Directory::SetMembers(const std::vector<std::string>& ids) {
  MutexLock lock(mu_);
  members_ = {ids.begin(), ids.end()};
  for (auto it = streams_.begin(); it != streams_.end();) {
    const auto at = it++;
    if (members_.contains(at->first)) continue;
    Forget(at->second.arriving);
    Forget(at->second.before);
    streams_.erase(at);
  }
}

bool Directory::young() const {
  MutexLock lock(mu_);
  for (const std::string& id : members_) {
    const auto it = streams_.find(id);
    if (it == streams_.end() || !(it->second.complete || it->second.before != 0)) return true;
  }
  return false;
}

std::vector<std::vector<Holder>> Directory::Find(std::span<const WaymarkHash> hashes) const {
  std::vector<std::vector<Holder>> all;
  all.reserve(hashes.size());
  MutexLock lock(mu_);
  for (const WaymarkHash hash : hashes) {
    std::vector<Holder>& holders = all.emplace_back();
    for (const HolderEntry& entry : table_.Find(hash)) {
      const auto name = names_.find(entry.holder);
      if (name == names_.end()) continue;
      // Its old stream and its new one may both have it.
      const bool there = std::any_of(holders.begin(), holders.end(), [&](const Holder& holder) {
        return holder.id == name->second;
      });
      if (!there) holders.push_back({name->second, entry.tier});
    }
  }
  return all;
}

}  // namespace cairn::cache
